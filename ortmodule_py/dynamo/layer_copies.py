"""Copies the calls of a layer for another one (`equal_layers`)."""

from __future__ import annotations

import types
from collections.abc import Callable, Set
from typing import Any

import torch
from torch import Tensor, fx
from torch._guards import Source

from ortmodule_py.dynamo.equal_guards import GuardsOf, Paths, UnequalError
from ortmodule_py.dynamo.open_calls import OpenCall, given_again, is_same_constant
from ortmodule_py.dynamo.traced_layers import (
    LayerCall,
    TracedLayer,
    calls_since,
    described_values,
    nodes_of,
    realized,
    rebuilt,
    storage_of,
    storages_of,
    version,
)
from ortmodule_py.trace.repeats import STORAGE, operands

_VARIABLES: Any = torch._dynamo.variables
copied_layers = 0
"""Layers that were copied in this process."""


def may_copy(earlier: TracedLayer, traced_whole: Set[types.CodeType], tx: Any) -> bool:
    """Whether the layer is still as it was traced, and no copy of one with open calls has failed in this code."""
    if earlier.call.open_calls and tx.output.root_tx.f_code in traced_whole:
        return False
    return not any(node._erased for node in earlier.calls)


def copy_layer(
    earlier: TracedLayer,
    call: LayerCall,
    module: Any,
    traced_whole: set[types.CodeType],
    tx: Any,
) -> Any:
    """What `module` returns, as Dynamo's variable; `UnequalError` if it may be traced differently.

    Adds the captured function to `traced_whole` if the copy fails behind an open call.
    """
    _check_reads(earlier, 0, tx)
    if earlier.guards is None:
        unread = {source for source, read in earlier.call.numbers.items() if not read}
        earlier.guards = GuardsOf(earlier.source, tx, unread)
    paths = earlier.guards.moved_to(module.source)
    made = dict(zip(earlier.call.nodes, call.nodes, strict=True))
    variables = dict(zip(earlier.call.nodes, call.variables, strict=True))
    for node in _read_outside(earlier):
        variable = paths.input_for(node)
        if variable is not None:
            made[node], variables[node] = variable.as_proxy().node, variable
    try:
        _Copy(earlier, paths, made, variables, tx).run()
    except UnequalError as error:
        if earlier.call.open_calls:  # they have changed objects
            traced_whole.add(tx.output.root_tx.f_code)
            # The kind that forgets which instructions were reached, as others are reached now.
            restart = torch._dynamo.exc.UnspecializeRestartAnalysis
            raise restart(restart_reason="unequal layers") from error
        for node in reversed(earlier.calls):
            if node in made:
                tx.output.graph.erase_node(made[node])
        raise
    paths.install()
    global copied_layers
    copied_layers += 1
    return rebuilt(earlier.result, variables)


def _check_reads(earlier: TracedLayer, behind: int, tx: Any) -> None:
    """What the layer read of objects after so many open calls is the same now."""
    for read in earlier.call.reads:
        if read.behind == behind and not read.holds(tx.output.side_effects):
            raise UnequalError("objects")


class _Copy:
    """Copies the calls of a layer, and makes Dynamo's variables of its results.

    The other calls keep the fake tensors of the earlier layer. `UnequalError` if a result is another than of that
    layer: it is computed in the modes around the layer, not in those of a `no_grad` inside.
    """

    def __init__(
        self,
        earlier: TracedLayer,
        paths: Paths,
        made: dict[fx.Node, fx.Node],
        variables: dict[fx.Node, Any],
        tx: Any,
    ) -> None:
        self.earlier = earlier
        self.paths = paths
        self.made = made
        self.variables = variables
        self.tx = tx
        self.own = {*earlier.calls} - _inside(earlier)
        self.given = {*earlier.returned, *_given(earlier)}
        self.renewed = _renewed(earlier)
        self.storages = {storage_of(old): storage_of(new) for old, new in made.items()}

    def run(self) -> None:
        """Copy all calls."""
        behind = 0
        for step in _steps(self.earlier):
            if isinstance(step, OpenCall):
                self._call(step)
                behind += 1
                _check_reads(self.earlier, behind, self.tx)
            else:
                self._copy(step)

    def _copy(self, node: fx.Node) -> None:
        copied = self.tx.output.graph.node_copy(node, lambda read: self.made.get(read, read))
        self.made[node] = copied
        self.paths.rename(copied, self.tx.nn_module_stack)
        if node not in self.renewed:
            if (storage := storage_of(node)) is not None:
                copied.meta[STORAGE] = self.storages.get(storage, (copied_layers, storage))
            return
        known = copied.meta.pop("example_value")
        if node in self.given:
            proxy = fx.Proxy(copied, self.tx.output.current_tracer)
            self.variables[node] = _VARIABLES.builder.wrap_fx_proxy(self.tx, proxy)
        elif isinstance(node.target, torch._ops.HigherOrderOperator):
            copied.meta["example_value"] = torch.utils._pytree.tree_map_only(Tensor, _anew, known)
        else:
            copied.meta["example_value"] = torch._dynamo.utils.get_fake_value(copied, self.tx)
        if described_values(copied.meta["example_value"]) != described_values(known):
            raise UnequalError("results")

    def _call(self, call: OpenCall) -> None:
        """Have Dynamo trace an open call of this layer."""
        args = [given_again(value, self._of_source, self._of_node(call)) for value in call.args]
        kwargs = {
            name: given_again(value, self._of_source, self._of_node(call))
            for name, value in call.kwargs.items()
        }
        last = next(iter(reversed(self.tx.output.graph.nodes)), None)
        try:
            result = call.method.call_function(self.tx, args, kwargs)
        except torch._dynamo.exc.ObservedException as error:
            raise UnequalError("an error of an open call") from error  # the layer may handle it
        for known, node in zip(call.calls, calls_since(last, self.tx.output.graph), strict=False):
            if "nn_module_stack" in known.meta:
                node.meta["nn_module_stack"] = known.meta["nn_module_stack"]
                self.paths.rename(node, self.tx.nn_module_stack)
        if nodes_of(result) is None:
            raise UnequalError("results of an open call")
        self._match(call, call.result, result)

    def _of_source(self, source: Source) -> Any:
        moved = self.paths.of(source)
        value = self.paths.value(moved)
        return _VARIABLES.base.VariableTracker.build(self.tx, value, moved)

    def _of_node(self, call: OpenCall) -> Callable[[fx.Node], Any]:
        def variable(node: fx.Node) -> Any:
            if node not in self.variables and (node in self.own or node in self.made):
                raise UnequalError("arguments of an open call")
            return self.variables.get(node, call.variables.get(node))

        return variable

    def _match(self, call: OpenCall, known: Any, result: Any) -> None:
        """Note the results of an open call, which must be like those of the earlier layer."""
        result = realized(result)
        if isinstance(known, tuple):
            if type(result) is not _VARIABLES.TupleVariable or len(result.items) != len(known):
                raise UnequalError("results of an open call")
            for part, item in zip(known, result.items, strict=True):
                self._match(call, part, item)
            return
        if not isinstance(known, fx.Node):
            if not is_same_constant(known, result):
                raise UnequalError("results of an open call")
            return
        if type(result) is not _VARIABLES.TensorVariable:
            raise UnequalError("results of an open call")
        node: fx.Node = result.as_proxy().node
        if node is not self.made.get(known, node if known in call.calls else known):
            raise UnequalError("results of an open call")
        values = known.meta["example_value"], node.meta["example_value"]
        if described_values(values[0]) != described_values(values[1]):
            raise UnequalError("results of an open call")
        self.made[known], self.variables[known] = node, result
        self.storages[storage_of(known)] = storage_of(node)


def _inside(earlier: TracedLayer) -> set[fx.Node]:
    """The calls that open calls made."""
    return {node for call in earlier.call.open_calls for node in call.calls}


def _given(earlier: TracedLayer) -> list[fx.Node]:
    """What open calls were given and returned."""
    calls = earlier.call.open_calls
    given = [part for call in calls for part in call.given() if isinstance(part, fx.Node)]
    return [*given, *(node for call in calls for node in call.returned)]


def _steps(earlier: TracedLayer) -> list[fx.Node | OpenCall]:
    """The calls of the layer itself and its open calls, in order."""
    waiting = list(earlier.call.open_calls)
    inside, known = _inside(earlier), {*earlier.calls}
    steps: list[fx.Node | OpenCall] = []
    while waiting and waiting[0].before not in known:
        steps.append(waiting.pop(0))
    for node in earlier.calls:
        if node not in inside:
            steps.append(node)
        while waiting and waiting[0].before is node:
            steps.append(waiting.pop(0))
    if waiting:
        raise UnequalError("open calls")
    return steps


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


def _read_outside(earlier: TracedLayer) -> list[fx.Node]:
    """The nodes that a layer reads or returns beside its arguments and its own calls."""
    known, inside = {*earlier.calls, *earlier.call.nodes}, _inside(earlier)
    own = [call for call in earlier.calls if call not in inside]
    read = {node: None for call in own for node in operands(call)} | earlier.returned
    read |= dict.fromkeys(_given(earlier))
    return [node for node in read if node not in known and not _is_size(node)]


def _is_size(node: fx.Node) -> bool:
    """Whether it was read of an argument before the layer: the same expression of the same symbols."""
    number = isinstance(node.meta.get("example_value"), (torch.SymInt, torch.SymFloat))
    return number and "grapharg" not in node.meta


def _renewed(earlier: TracedLayer) -> set[fx.Node]:
    """The calls whose values share memory with a result, an argument of an open call, or a value from elsewhere that
    is changed in place.

    Dynamo tells results apart by their fake tensors, and counts changes there.
    """
    changed = [node for node in _read_outside(earlier) if version(node)]
    shown = [*earlier.returned, *_given(earlier), *changed]
    shared = {storage for node in shown for storage in storages_of(node)}
    return {node for node in earlier.calls if shared & storages_of(node)}
