"""Layers that Dynamo need not trace, since it has traced an equal one in the same capture.

Dynamo follows the Python of each layer by itself: 0.1 to 0.3 s for a layer of a transformer, most of it for fake
tensors. A layer is equal to an earlier one if the guards that the earlier one left hold for it, too: types, numbers,
flags, hooks, and which objects are the same. Then its calls are copied in the graph, its parameters become inputs of
their own, and its guards are added, so that a later change of any one layer is a new capture. torch has the idea for
`nested_compile_region` (`torch/_dynamo/variables/invoke_subgraph.py`), but adds no guards for a copy.
"""

from __future__ import annotations

import contextlib
import itertools
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from torch import fx
from torch._guards import Source

from ortmodule_py.base.torch_state import thread_state
from ortmodule_py.dynamo.equal_guards import UnequalError
from ortmodule_py.dynamo.layer_copies import copy_layer, may_copy
from ortmodule_py.dynamo.open_calls import OpenCall, Read, described, is_made_object, unread_again
from ortmodule_py.dynamo.traced_layers import (
    LayerCall,
    TracedLayer,
    calls_since,
    described_value,
    frozen,
    nodes_of,
    version,
)
from ortmodule_py.trace.repeats import describe, operands

_SMALLEST = 8
"""Calls of a layer; smaller ones take as long to copy as to trace."""
_CANDIDATES = 4
"""Earlier layers of one class that a layer is compared with, the last first."""
_OF_MEMORY = {
    torch.Tensor.set_,
    "set_",
    "resize_",
    getattr(torch.ops.aten, "shallow_copy_data_", None),
}
"""Calls that give an argument other memory, which its fake tensor then has."""
_STATE = "_ortmodule_layers"
_VARIABLES: Any = torch._dynamo.variables
_PLAIN = (
    *(type(None), bool, int, float, complex, str, type(...), torch.Size),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, type),
)
"""What a call may have as arguments beside tensors, and lists and slices of these."""


@dataclass
class EqualLayers:
    """The layers that Dynamo has traced in one capture."""

    traced: dict[Any, list[TracedLayer]] = field(default_factory=dict)
    """By class and number of arguments."""
    inside: list[LayerCall] = field(default_factory=list)
    """The layers that are being traced."""
    begun: int = 0
    changes: int = 0
    """Changes of objects of the model."""
    reads: int = 0
    """Reads of changed attributes, which have no guards."""
    containers: list[Any] = field(default_factory=list)
    """Lists and dictionaries of the model that were changed."""
    traced_whole: set[types.CodeType] = field(default_factory=set)
    """The set of that name of the module's log of captures."""

    @contextlib.contextmanager
    def tracing(self, layer: LayerCall) -> Iterator[None]:
        """Around the trace of a layer."""
        self.begun += 1
        layer.begun = self.begun
        self.inside.append(layer)
        try:
            yield
        finally:
            self.inside.pop()

    def made(self, mutation: Any) -> None:
        """Note when the capture made an object."""
        mutation.ortmodule_made = self.begun
        mutation.ortmodule_opened = [layer for layer in self.inside if layer.opened]

    def changed(self, variable: Any) -> None:
        """Note that an object is changed."""
        mutation, kinds = variable.mutation_type, torch._dynamo.variables.base
        if _is_new(variable):
            for layer in self.inside:
                # An open call may change what each layer has its own of.
                layer.depends_on_older |= _is_older(variable, layer) != bool(layer.opened)
            return
        self.changes += 1
        if isinstance(mutation, kinds.ValueMutationExisting) and variable not in self.containers:
            self.containers.append(variable)

    def hides_changes(self) -> bool:
        """Whether a changed list or dictionary of the model may hold an object that changes without guards."""
        return any(map(_hides_changes, self.containers))

    def read(self, variable: Any, name: str, value: Any) -> None:
        """Note that an attribute is read which the capture has assigned; None if it has not."""
        if not _is_new(variable):
            self.reads += value is not None
            return
        for layer in self.inside:
            if not layer.opened and _is_older(variable, layer):
                read = Read(variable, name, value, len(layer.open_calls))
                layer.reads.append(read)
                layer.depends_on_older |= not read.is_fixed()

    def looked_at(self, source: Source) -> None:
        """Note that Dynamo reads or guards a value of the model."""
        for layer in self.inside:
            if source in layer.numbers and not layer.opened:
                layer.numbers[source] = True

    def call(
        self, trace: Callable[..., Any], method: Any, tx: Any, args: Any, kwargs: dict[str, Any]
    ) -> Any:
        """What a call of a method returns, which is open for the layers that are younger than its object."""
        output = tx.output
        layers = [
            layer
            for layer in self.inside
            if not layer.opened
            and is_made_object(method.obj)
            and _is_of_before(method.obj, layer)
            and layer.facts[1] == thread_state()
        ]
        if not layers or len(output.tracers) != 1:
            return trace(method, tx, args, kwargs)
        last = next(iter(reversed(output.graph.nodes)), None)
        call = OpenCall(method, [], {}, last)
        call.args = [described(value, call.variables) for value in args]
        call.kwargs = {name: described(value, call.variables) for name, value in kwargs.items()}
        args = [unread_again(value) for value in args]
        kwargs = {name: unread_again(value) for name, value in kwargs.items()}
        guards = torch._guards.TracingContext.get().guards_context.dynamo_guards.source_to_guards
        for layer in layers:
            layer.opened = True
            for source in call.given():
                if isinstance(source, Source):
                    layer.numbers.setdefault(source, bool(guards.get(source)))
        try:
            result = trace(method, tx, args, kwargs)
        except Exception:
            # The layer may handle an error that another one does not have.
            for layer in layers:
                layer.depends_on_older = True
            raise
        finally:
            for layer in layers:
                layer.opened = False
        call.calls = calls_since(last, output.graph)
        returned = nodes_of(result)
        if returned is not None:
            call.returned, call.result = returned, frozen(result)
        for layer in layers:
            layer.open_calls.append(call)
            layer.depends_on_older |= returned is None or not _is_given(call, layer)
        return result


def _is_of_before(variable: Any, layer: LayerCall) -> bool:
    """Whether a new object was made before the layer was begun."""
    return bool(vars(variable.mutation_type).get("ortmodule_made", 0) < layer.begun)


def _is_older(variable: Any, layer: LayerCall) -> bool:
    """Whether a new object is not the layer's own: made before it, or by an open call of it."""
    opened = vars(variable.mutation_type).get("ortmodule_opened", ())
    return _is_of_before(variable, layer) or layer in opened


def _is_given(call: OpenCall, layer: LayerCall) -> bool:
    """Whether the arguments of an open call can be given for another layer, too."""
    parts = list(call.given())
    objects = [part for part in parts if isinstance(part, _VARIABLES.UserDefinedObjectVariable)]
    known = not any(part is None for part in parts)
    return known and all(_is_of_before(part, layer) for part in objects)


def _is_new(variable: Any) -> bool:
    """Whether the capture made the object, and no tensor, whose attributes others may read."""
    kinds = torch._dynamo.variables.base
    new = kinds.AttributeMutationNew, kinds.ValueMutationNew
    return isinstance(variable.mutation_type, new) and not variable.is_tensor()


def _hides_changes(container: Any) -> bool:
    items = getattr(container, "items", None)
    values = list(items.values()) if isinstance(items, dict) else items
    if not isinstance(values, list):
        return True
    loose = [value for value in values if value.source is None]
    return any(_is_new(value) or _hides_changes(value) for value in loose if not _is_value(value))


def _is_value(variable: Any) -> bool:
    return type(variable) in (_VARIABLES.ConstantVariable, _VARIABLES.TensorVariable)


def layers_of(output: Any) -> EqualLayers:
    """The layers of a capture."""
    known = vars(output)
    if _STATE not in known:
        known[_STATE] = EqualLayers()
    layers: EqualLayers = known[_STATE]
    return layers


def trace_or_copy(
    trace: Callable[..., Any], module: Any, tx: Any, args: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    """What a call of a module returns, as Dynamo's variable."""
    output = tx.output
    printing = torch._dynamo.config.reorderable_logging_functions
    if module.source is None or output.export or len(output.tracers) != 1 or printing:
        return trace(module, tx, args, kwargs)
    layers = layers_of(output)
    operand_list = [*args, *kwargs.values()]
    names = (type(module.value), len(args), *kwargs)
    before = _described(operand_list, layers, tx)
    if before is None or layers.hides_changes():
        return trace(module, tx, args, kwargs)
    for earlier in reversed(layers.traced.get(names, [])):
        if not may_copy(earlier, layers.traced_whole, tx):
            continue
        earlier.call.key = _simplified(earlier.call.key, before.key, output.shape_env)
        if before.key != earlier.call.key:
            continue
        try:
            return copy_layer(earlier, before, module, layers.traced_whole, tx)
        except UnequalError:
            continue
    with layers.tracing(before):
        result = trace(module, tx, args, kwargs)
    calls = calls_since(before.before, output.graph)
    returned = nodes_of(result)
    size = sum(_size(node, tx) for node in calls)
    if returned is not None and size >= _SMALLEST and _is_closed(before, calls, layers, tx):
        found = layers.traced.setdefault(names, [])
        found.append(TracedLayer(before, module.source, frozen(result), returned, calls))
        del found[:-_CANDIDATES]
    return result


def _described(given: Sequence[Any], layers: EqualLayers, tx: Any) -> LayerCall | None:
    """The call, or None if an argument is of a kind that cannot be compared."""
    call = LayerCall(None, [], [], [], next(iter(reversed(tx.output.graph.nodes)), None), 0, ())
    keys = [_key_of(variable, call) for variable in given]
    if None in keys:
        return None
    call.versions = [version(node) for node in call.nodes]
    call.symbols = len(tx.output.shape_env.backed_var_to_val)
    call.facts = _facts(layers, tx.output)
    call.key = tuple(keys), call.facts[:_OF_KEY]
    return call


def _key_of(variable: Any, call: LayerCall) -> Any:
    """What the trace of a layer may depend on, of one argument; None if that is not known."""
    if isinstance(variable, _VARIABLES.LazyVariableTracker):
        if not variable.is_realized():
            # An argument that the layer may not read has no guards yet.
            return "unread", variable.peek_value() is None, variable.original_source()
        variable = variable.realize()
    kind = type(variable)
    if kind in (_VARIABLES.TensorVariable, _VARIABLES.SymNodeVariable):
        node = variable.as_proxy().node
        described = described_value(node.meta.get("example_value"))
        if described is None:
            return None
        if node not in call.nodes:
            call.nodes.append(node)
            call.variables.append(variable)
        return kind, described, call.nodes.index(node), getattr(variable, "class_type", None)
    if kind is _VARIABLES.ConstantVariable:
        value = variable.as_python_constant()
        return (type(value), repr(value)) if isinstance(value, _PLAIN) else None
    if kind in (_VARIABLES.TupleVariable, _VARIABLES.lists.SizeVariable):
        keys = tuple(_key_of(item, call) for item in variable.items)
        return None if None in keys else (kind, keys)
    if is_made_object(variable):
        return kind, variable.mutation_type
    # An object of the model that several layers get, as a configuration: it is the same one.
    return None if variable.source is None else (kind, variable.source)


def _simplified(key: Any, wanted: Any, symbols: Any) -> Any:
    """A description with the sizes that are known by now, if it is another than the wanted one: an earlier layer may
    itself have shown that two sizes are one."""
    if key == wanted:
        return key
    if isinstance(key, tuple):
        return tuple(_simplified(part, None, symbols) for part in key)
    return symbols.replace(key) if isinstance(key, sympy.Expr) else key


_OF_KEY = 3
"""The facts that a layer may read: it is equal to one that had the same."""


def _facts(layers: EqualLayers, output: Any) -> tuple[Any, ...]:
    symbols = output.shape_env
    return (
        layers.changes,
        thread_state(),
        torch.get_default_dtype(),
        layers.reads,
        len(output.random_calls),
        len(output.pregraph_bytecode),
        len(output.root_tx.debug_locals),
        len(output.side_effects.tensor_hooks),
        len(output.side_effects.save_for_backward),
        symbols.unbacked_symint_counter,
        symbols.num_deferred_runtime_asserts,
    )


def _size(node: fx.Node, tx: Any) -> int:
    """The calls that a node stands for, with those in the body of a higher-order operator."""
    body = _body(node, tx)
    return 1 if body is None else len(body.graph.nodes)


def _body(node: fx.Node, tx: Any) -> fx.GraphModule | None:
    """The body of a higher-order operator, as a checkpoint, that a node names; it reads arguments only."""
    body = tx.output.nn_modules.get(node.target) if node.op == "get_attr" else None
    return body if isinstance(body, fx.GraphModule) else None


def _is_closed(before: LayerCall, calls: list[fx.Node], layers: EqualLayers, tx: Any) -> bool:
    """Whether a traced layer changed nothing but tensors of its own, and each call of it can be copied."""
    return (
        before.facts == _facts(layers, tx.output)
        and not before.depends_on_older
        and before.versions == [version(node) for node in before.nodes]
        and all(
            node.op in ("call_function", "call_method") or _body(node, tx) is not None
            for node in calls
        )
        and not any(node.target in _OF_MEMORY for node in calls)
        and not _reads_inside(before.open_calls, calls)
        and not _reads_new_symbols(before.symbols, calls, tx.output.shape_env)
        and all(_is_plain((node.args, tuple(node.kwargs.values()))) for node in calls)
    )


def _reads_inside(open_calls: Sequence[OpenCall], calls: Sequence[fx.Node]) -> bool:
    """Whether a call reads what an open call has computed beside its results."""
    inside = {node for call in open_calls for node in call.calls}
    results = {node for call in open_calls for node in call.returned}
    own = [node for node in calls if node not in inside]
    return any(node in inside and node not in results for call in own for node in operands(call))


def _reads_new_symbols(before: int, calls: list[fx.Node], symbols: Any) -> bool:
    """Whether a layer made a symbol that it reads: each counter of a batch norm has one, for its `item()`."""
    made = set(itertools.islice(symbols.backed_var_to_val, before, None))
    if not made:
        return False
    of_item = torch._dynamo.source.CallMethodItemSource
    sources = (source for symbol in made for source in symbols.var_to_sources.get(symbol, [None]))
    if not all(isinstance(source, of_item) for source in sources):
        return True
    read = [symbols.replace(guard.expr) for guard in symbols.guards]
    read += _expressions(tuple(describe(node.meta.get("example_value")) for node in calls))
    return any(not made.isdisjoint(expression.free_symbols) for expression in read)


def _expressions(key: Any) -> list[sympy.Expr]:
    if isinstance(key, tuple):
        return [found for part in key for found in _expressions(part)]
    return [key] if isinstance(key, sympy.Expr) else []


def _is_plain(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    if isinstance(value, slice):
        return all(map(_is_plain, (value.start, value.stop, value.step)))
    return isinstance(value, (fx.Node, *_PLAIN))
