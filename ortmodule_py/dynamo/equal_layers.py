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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from torch import Tensor, fx
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ortmodule_py.base.torch_state import thread_state
from ortmodule_py.dynamo.equal_guards import GuardsOf, Paths, UnequalError
from ortmodule_py.trace.repeats import STORAGE, describe, operands

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
copied_layers = 0
"""Layers that were copied in this process."""
_VARIABLES: Any = torch._dynamo.variables
_PLAIN = (
    *(type(None), bool, int, float, complex, str, type(...), torch.Size),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, type),
)
"""What a call may have as arguments beside tensors, and lists and slices of these."""


@dataclass
class _Call:
    """A call of a module, before it is traced."""

    key: Any
    """The description of its arguments, of the thread's modes and of what was traced so far."""
    nodes: list[fx.Node]
    """The nodes of its arguments, each once."""
    variables: list[Any]
    """Dynamo's variables of these nodes."""
    versions: list[int]
    """How often each argument was changed in place."""
    before: fx.Node | None
    """The last node of the graph."""
    symbols: int
    """Symbols that the capture has made."""
    facts: tuple[Any, ...]
    """The state of the thread, and counts, that the trace of a layer that can be copied leaves as they are."""
    begun: int = 0
    """Layers that were begun so far, this one included."""
    changes_older: bool = False
    """Whether the layer changed a Python object that the capture had made before."""


@dataclass
class _Traced:
    """A traced layer."""

    call: _Call
    source: Any
    result: Any
    """Nodes, constants, and tuples of them."""
    returned: dict[fx.Node, None]
    """The nodes of the result."""
    calls: list[fx.Node]
    guards: GuardsOf | None = None
    """Collected when another layer is compared for the first time."""


@dataclass
class EqualLayers:
    """The layers that Dynamo has traced in one capture."""

    traced: dict[Any, list[_Traced]] = field(default_factory=dict)
    """By class and number of arguments."""
    inside: list[_Call] = field(default_factory=list)
    """The layers that are being traced."""
    begun: int = 0
    changes: int = 0
    """Changes of objects of the model."""
    reads: int = 0
    """Reads of changed attributes, which have no guards."""
    containers: list[Any] = field(default_factory=list)
    """Lists and dictionaries of the model that were changed."""

    @contextlib.contextmanager
    def tracing(self, layer: _Call) -> Iterator[None]:
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

    def changed(self, variable: Any) -> None:
        """Note that an object is changed."""
        mutation, kinds = variable.mutation_type, torch._dynamo.variables.base
        if _is_new(variable):
            for layer in self.inside:
                layer.changes_older |= vars(mutation).get("ortmodule_made", 0) < layer.begun
            return
        self.changes += 1
        if isinstance(mutation, kinds.ValueMutationExisting) and variable not in self.containers:
            self.containers.append(variable)

    def hides_changes(self) -> bool:
        """Whether a changed list or dictionary of the model may hold an object that changes without guards."""
        return any(map(_hides_changes, self.containers))

    def read(self, variable: Any) -> None:
        """Note that a changed attribute is read."""
        if not _is_new(variable):
            self.reads += 1


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
        try:
            return _copy(earlier, before, module, tx)
        except UnequalError:
            continue
    with layers.tracing(before):
        result = trace(module, tx, args, kwargs)
    calls = _calls_since(before.before, output.graph)
    returned = _returned(result)
    size = sum(_size(node, tx) for node in calls)
    if returned is not None and size >= _SMALLEST and _is_closed(before, calls, layers, tx):
        found = layers.traced.setdefault(names, [])
        found.append(_Traced(before, module.source, _frozen(result), returned, calls))
        del found[:-_CANDIDATES]
    return result


def _described(given: Sequence[Any], layers: EqualLayers, tx: Any) -> _Call | None:
    """The call, or None if an argument is of a kind that cannot be compared."""
    call = _Call(None, [], [], [], next(iter(reversed(tx.output.graph.nodes)), None), 0, ())
    keys = [_key_of(variable, call) for variable in given]
    if None in keys:
        return None
    call.versions = [_version(node) for node in call.nodes]
    call.symbols = len(tx.output.shape_env.backed_var_to_val)
    call.facts = _facts(layers, tx.output)
    call.key = tuple(keys), call.facts[:_OF_KEY]
    return call


def _key_of(variable: Any, call: _Call) -> Any:
    """What the trace of a layer may depend on, of one argument; None if that is not known."""
    if isinstance(variable, _VARIABLES.LazyVariableTracker):
        if not variable.is_realized():
            # An argument that the layer may not read has no guards yet.
            return "unread", variable.peek_value() is None, variable.original_source()
        variable = variable.realize()
    kind = type(variable)
    if kind in (_VARIABLES.TensorVariable, _VARIABLES.SymNodeVariable):
        node = variable.as_proxy().node
        described = _described_value(node.meta.get("example_value"))
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
    # An object of the model that several layers get, as a configuration: it is the same one.
    return None if variable.source is None else (kind, variable.source)


def _described_value(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return describe(value)
    if is_traceable_wrapper_subclass(value) or not torch._C._has_storage(value):
        return None  # it has parts, or the values of a functional transform
    gradient = value.is_leaf, value.grad_fn is None, value.is_inference()
    kind = type(value), value.layout, value.is_conj(), value.is_neg()
    return describe(value), describe(value.storage_offset()), gradient, kind


def _described_values(value: Any) -> Any:
    parts = value if isinstance(value, (tuple, list)) else [value]
    return list(map(_described_value, parts))


def _simplified(key: Any, symbols: Any) -> Any:
    """A description with the sizes that are known by now."""
    if isinstance(key, tuple):
        return tuple(_simplified(part, symbols) for part in key)
    return symbols.replace(key) if isinstance(key, sympy.Expr) else key


def _version(node: fx.Node) -> int:
    value = node.meta.get("example_value")
    plain = isinstance(value, Tensor) and not value.is_inference()
    return value._version if plain else 0


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


def _calls_since(before: fx.Node | None, graph: fx.Graph) -> list[fx.Node]:
    """The calls behind a node, in order; none if the node is gone."""
    calls: list[fx.Node] = []
    for node in reversed(graph.nodes):
        if node is before:
            return calls[::-1]
        if node.op != "placeholder":
            calls.append(node)
    return calls[::-1] if before is None else []


def _size(node: fx.Node, tx: Any) -> int:
    """The calls that a node stands for, with those in the body of a higher-order operator."""
    body = _body(node, tx)
    return 1 if body is None else len(body.graph.nodes)


def _body(node: fx.Node, tx: Any) -> fx.GraphModule | None:
    """The body of a higher-order operator, as a checkpoint, that a node names; it reads arguments only."""
    body = tx.output.nn_modules.get(node.target) if node.op == "get_attr" else None
    return body if isinstance(body, fx.GraphModule) else None


def _is_closed(before: _Call, calls: list[fx.Node], layers: EqualLayers, tx: Any) -> bool:
    """Whether a traced layer changed nothing but tensors of its own, and each call of it can be copied."""
    return (
        before.facts == _facts(layers, tx.output)
        and not before.changes_older
        and before.versions == [_version(node) for node in before.nodes]
        and all(
            node.op in ("call_function", "call_method") or _body(node, tx) is not None
            for node in calls
        )
        and not any(node.target in _OF_MEMORY for node in calls)
        and not _reads_new_symbols(before.symbols, calls, tx.output.shape_env)
        and all(_is_plain((node.args, tuple(node.kwargs.values()))) for node in calls)
    )


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


def _copy(earlier: _Traced, call: _Call, module: Any, tx: Any) -> Any:
    """Copy the earlier layer; `UnequalError` if this one may be traced differently."""
    if call.key != earlier.call.key:
        # The earlier layer may itself have shown that two sizes are one.
        earlier.call.key = _simplified(earlier.call.key, tx.output.shape_env)
    if call.key != earlier.call.key or any(node._erased for node in earlier.calls):
        raise UnequalError("arguments")
    if earlier.guards is None:
        earlier.guards = GuardsOf(earlier.source, tx)
    paths = earlier.guards.moved_to(module.source)
    made = dict(zip(earlier.call.nodes, call.nodes, strict=True))
    variables = dict(zip(earlier.call.nodes, call.variables, strict=True))
    for node in _read_outside(earlier):
        variable = paths.input_for(node)
        if variable is not None:
            made[node], variables[node] = variable.as_proxy().node, variable
    try:
        _copy_calls(earlier, paths, made, variables, tx)
    except UnequalError:
        for node in reversed(earlier.calls):
            if node in made:
                tx.output.graph.erase_node(made[node])
        raise
    paths.install()
    global copied_layers
    copied_layers += 1
    return _rebuilt(earlier.result, variables)


def _copy_calls(
    earlier: _Traced,
    paths: Paths,
    made: dict[fx.Node, fx.Node],
    variables: dict[fx.Node, Any],
    tx: Any,
) -> None:
    """Copy the calls of a layer, and make Dynamo's variables of its results.

    The other calls keep the fake tensors of the earlier layer. `UnequalError` if a result is another than of that
    layer: it is computed in the modes around the layer, not in those of a `no_grad` inside.
    """
    renewed = _renewed(earlier)
    storages = {_storage(old): _storage(new) for old, new in made.items()}
    for node in earlier.calls:
        copied = tx.output.graph.node_copy(node, lambda read: made.get(read, read))
        made[node] = copied
        paths.rename(copied, tx.nn_module_stack)
        if node not in renewed:
            if (storage := _storage(node)) is not None:
                copied.meta[STORAGE] = storages.get(storage, (copied_layers, storage))
            continue
        known = copied.meta.pop("example_value")
        if node in earlier.returned:
            proxy = fx.Proxy(copied, tx.output.current_tracer)
            variables[node] = torch._dynamo.variables.builder.wrap_fx_proxy(tx, proxy)
        elif isinstance(node.target, torch._ops.HigherOrderOperator):
            copied.meta["example_value"] = torch.utils._pytree.tree_map_only(Tensor, _anew, known)
        else:
            copied.meta["example_value"] = torch._dynamo.utils.get_fake_value(copied, tx)
        if _described_values(copied.meta["example_value"]) != _described_values(known):
            raise UnequalError("results")


def _anew(fake: Any) -> Any:
    """A fake tensor in memory of its own; a result of a higher-order operator has such."""
    with fake.fake_mode:
        made = torch.empty_strided(
            fake.shape,
            fake.stride(),
            dtype=fake.dtype,
            device=fake.device,
            requires_grad=fake.requires_grad,
        )
        return made if fake.is_leaf else made.clone()


def _read_outside(earlier: _Traced) -> list[fx.Node]:
    """The nodes that a layer reads or returns beside its arguments and its own calls."""
    known = {*earlier.calls, *earlier.call.nodes}
    read = {node: None for call in earlier.calls for node in operands(call)} | earlier.returned
    return [node for node in read if node not in known and not _is_size(node)]


def _is_size(node: fx.Node) -> bool:
    """Whether it was read of an argument before the layer: the same expression of the same symbols."""
    number = isinstance(node.meta.get("example_value"), (torch.SymInt, torch.SymFloat))
    return number and "grapharg" not in node.meta


def _renewed(earlier: _Traced) -> set[fx.Node]:
    """The calls whose values share memory with a result, or with a parameter that is changed in place.

    Dynamo tells results apart by their fake tensors, and counts changes there.
    """
    changed = [node for node in _read_outside(earlier) if _version(node)]
    shared = {storage for node in [*earlier.returned, *changed] for storage in _storages(node)}
    return {node for node in earlier.calls if shared & _storages(node)}


def _storage(node: fx.Node) -> int | None:
    """The memory of a tensor; None of several tensors and of numbers."""
    value = node.meta.get("example_value")
    return next(iter(_storages(node)), None) if isinstance(value, Tensor) else None


def _storages(node: fx.Node) -> set[int]:
    value = node.meta.get("example_value")
    parts = value if isinstance(value, (tuple, list)) else [value]
    tensors = [part for part in parts if isinstance(part, Tensor) and torch._C._has_storage(part)]
    return {tensor.untyped_storage()._cdata for tensor in tensors}


def _returned(result: Any) -> dict[fx.Node, None] | None:
    """The nodes of a result; None if it is more than tensors, constants and tuples of them."""
    result = _realized(result)
    kind = type(result)
    if kind is _VARIABLES.TensorVariable:
        return {result.as_proxy().node: None}
    if kind is _VARIABLES.ConstantVariable:
        return {}
    if kind is not _VARIABLES.TupleVariable:
        return None
    found: dict[fx.Node, None] = {}
    for item in result.items:
        nodes = _returned(item)
        if nodes is None:
            return None
        found |= nodes
    return found


def _realized(variable: Any) -> Any:
    lazy = isinstance(variable, _VARIABLES.LazyVariableTracker)
    return variable.realize() if lazy and variable.is_realized() else variable


def _frozen(result: Any) -> Any:
    """A result as it is now, with nodes in place of tensors."""
    result = _realized(result)
    if type(result) is _VARIABLES.TupleVariable:
        return tuple(map(_frozen, result.items))
    return result if type(result) is _VARIABLES.ConstantVariable else result.as_proxy().node


def _rebuilt(result: Any, variables: dict[fx.Node, Any]) -> Any:
    if isinstance(result, tuple):
        return _VARIABLES.TupleVariable([_rebuilt(item, variables) for item in result])
    return variables[result] if isinstance(result, fx.Node) else result
