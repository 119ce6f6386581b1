"""Layers that are equal to an earlier one are copied instead of traced (`dynamo/equal_layers`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ortmodule_py.dynamo import equal_layers, layer_copies
from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import (
    HOLDS,
    capturing_compiler,
    dynamo_output,
    patch,
    rows,
)


class _Counter:
    count = 0


class _Counting(nn.Linear):
    """Changes a Python object that all layers share."""

    def __init__(self, counter: _Counter) -> None:
        super().__init__(4, 4)
        self.counter = counter

    def forward(self, x: Tensor) -> Tensor:
        self.counter.count += 1
        for _ in range(8):
            x = super().forward(x) * self.counter.count
        return x


def _make() -> nn.Module:
    torch.manual_seed(0)
    counter = _Counter()
    return nn.Sequential(
        *(nn.TransformerEncoderLayer(4, 2, 4, 0.0) for _ in range(3)),
        *(_Counting(counter) for _ in range(3)),
    )


def _probe(trial: Trial) -> bool:
    def change(model: Any) -> None:
        model[2].norm_first = True

    x, before = torch.ones(2, 3, 4), layer_copies.copied_layers
    same = trial(_make, (x,), (x,), between=change)
    # The first layer is another one, as its input has no gradient; in the second capture the last one is, too.
    return same and not trial.graph_breaks and layer_copies.copied_layers == before + 1


_WATCHING = (
    *("changed objects", "changed attributes", "made objects"),
    *("read attributes", "attributes as a dictionary"),
    *("calls of objects", "guarded values", "read values"),
)
"""Rows without which a layer is traced."""


@patch(
    "equal layers",
    "A layer that is equal to an earlier one takes Dynamo a tenth of the time.",
    {(2, 13): "torch._dynamo.variables.nn_module:UnspecializedNNModuleVariable.call_function"},
    probe=_probe,
    needed_by=None,
)
def _call(
    call: Callable[..., Any], self: Any, tx: Any, args: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    if all(rows[name].state == HOLDS for name in _WATCHING):
        compiler: Any = capturing_compiler()
        equal_layers.layers_of(tx.output).traced_whole = compiler.log.traced_whole
        return equal_layers.trace_or_copy(call, self, tx, args, kwargs)
    return call(self, tx, args, kwargs)


def _layers() -> equal_layers.EqualLayers | None:
    output = dynamo_output()
    return None if output is None else equal_layers.layers_of(output)


@patch(
    "changed objects",
    "A layer that changes a Python object is not taken for another one.",
    {(2, 13): "torch._dynamo.side_effects:SideEffects.check_allowed_side_effect"},
    probe=_probe,
    needed_by=None,
)
def _changed(check: Callable[..., Any], self: Any, item: Any) -> Any:
    layers = _layers()
    if layers is not None:
        layers.changed(item)
    return check(self, item)


@patch(
    "changed attributes",
    "A layer that reads what forward has assigned to an attribute is not taken for another one.",
    {(2, 13): "torch._dynamo.side_effects:SideEffects.load_attr"},
    probe=_probe,
    needed_by=None,
)
def _load(
    load: Callable[..., Any], self: Any, item: Any, name: str, *args: Any, **kwargs: Any
) -> Any:
    value = load(self, item, name, *args, **kwargs)
    layers = _layers()
    if layers is not None:
        layers.read(item, name, value)
    return value


@patch(
    "read attributes",
    "A layer that asks whether an object has an attribute is not taken for one that finds another answer.",
    {(2, 13): "torch._dynamo.side_effects:SideEffects.has_pending_mutation_of_attr"},
    probe=_probe,
    needed_by=None,
)
def _look_for(look: Callable[..., bool], self: Any, item: Any, name: str, *args: Any) -> bool:
    layers = _layers()
    if layers is not None and layers.inside and equal_layers.is_made_object(item):
        layers.read(item, name, self.store_attr_mutations.get(item, {}).get(name))
    return look(self, item, name, *args)


@patch(
    "attributes as a dictionary",
    "A layer that reads all attributes of an object is not copied.",
    {(2, 13): "torch._dynamo.variables.user_defined:UserDefinedObjectVariable.get_dict_vt"},
    probe=_probe,
    needed_by=None,
)
def _as_dictionary(attributes: Callable[..., Any], self: Any, tx: Any) -> Any:
    found = attributes(self, tx)
    layers = _layers()
    if layers is not None and layers.inside and equal_layers.is_made_object(self):
        layers.read(self, "the dictionary of all", found)
    return found


@patch(
    "calls of objects",
    "A call of a method of an older object is traced again in each layer.",
    {(2, 13): "torch._dynamo.variables.functions:UserMethodVariable.call_function"},
    probe=_probe,
    needed_by=None,
)
def _call_method(
    call: Callable[..., Any], self: Any, tx: Any, args: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    layers = _layers()
    if layers is None or not layers.inside:
        return call(self, tx, args, kwargs)
    return layers.call(call, self, tx, args, kwargs)


@patch(
    "guarded values",
    "A number that a layer guards is the same in the next layer.",
    {(2, 13): "torch._guards:GuardsSet.add"},
    probe=_probe,
    needed_by=None,
)
def _guard(add: Callable[..., None], self: Any, guard: Any, *args: Any, **kwargs: Any) -> None:
    layers = _layers()
    if layers is not None and layers.inside:
        layers.looked_at(guard.originating_source)
    add(self, guard, *args, **kwargs)


@patch(
    "read values",
    "A number that a layer reads is the same in the next layer.",
    {(2, 13): "torch._dynamo.variables.builder:VariableBuilder.__call__"},
    probe=_probe,
    needed_by=None,
)
def _build(build: Callable[..., Any], self: Any, value: Any) -> Any:
    layers = _layers()
    if layers is not None and layers.inside:
        layers.looked_at(self.source)
    return build(self, value)


@patch(
    "made objects",
    "Objects that a layer makes and changes do not count as changes of older ones.",
    {(2, 13): "torch._dynamo.variables.base:MutationType.__init__"},
    probe=_probe,
    needed_by=None,
)
def _made(init: Callable[..., None], self: Any, typ: Any) -> None:
    init(self, typ)
    layers = _layers()
    if layers is not None:
        layers.made(self)
