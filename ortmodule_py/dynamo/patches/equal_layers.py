"""Layers that are equal to an earlier one are copied instead of traced (`dynamo/equal_layers`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ortmodule_py.dynamo import equal_layers
from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import HOLDS, dynamo_output, patch, rows


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

    x, before = torch.ones(2, 3, 4), equal_layers.copied_layers
    same = trial(_make, (x,), (x,), between=change)
    # The first layer is another one, as its input has no gradient; in the second capture the last one is, too.
    return same and not trial.graph_breaks and equal_layers.copied_layers == before + 1


_WATCHING = ("changed objects", "changed attributes", "made objects")
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
def _read(load: Callable[..., Any], self: Any, item: Any, *args: Any, **kwargs: Any) -> Any:
    layers = _layers()
    if layers is not None:
        layers.read(item)
    return load(self, item, *args, **kwargs)


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
