"""Captures `x[mask] = y[mask]`, whose elements Dynamo would select, which breaks the graph.

The number of elements does not matter here: all are chosen between both tensors, place by place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.variables import UserFunctionVariable

from ortmodule_py.dynamo.patches.masked_updates import symbol_of
from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import patch


def _probe(trial: Trial) -> bool:
    def nearest(x: Tensor) -> Tensor:
        y, z = x * 1, x * 2
        mask = x < 0
        y[mask] = z[mask]
        return y

    x = torch.linspace(-1, 1, 5, requires_grad=True)
    return trial(lambda: nearest, (x,), (-x.detach() + 1,)) and not trial.graph_breaks


@patch(
    "masked_copies",
    "`x[mask] = y[mask]` breaks no graph.",
    {(2, 13): "torch._dynamo.symbolic_convert:InstructionTranslatorBase.step"},
    probe=_probe,
    needed_by=None,
)
def _step(step: Callable[..., Any], self: Any) -> Any:
    position = self.instruction_pointer
    if position is None or symbol_of(self.instructions[position]) != "[]":
        return step(self)
    loaded, behind = _loads_at(self, position + 1)
    stored = self.instructions[behind].opname == "STORE_SUBSCR"
    if not stored or len(loaded) != 2 or len(self.stack) < 2:
        return step(self)
    into, again = loaded
    source, mask = (value.realize() for value in self.stack[-2:])
    if again is not mask or not _is_placewise(into, source, mask):
        return step(self)
    try:
        UserFunctionVariable(_copy).call_function(self, [into, source, mask], {})
    except torch._dynamo.exc.Unsupported:  # the graph breaks there, as without this row
        return step(self)
    del self.stack[-2:]
    self.instruction_pointer = behind + 1
    return True


def _loads_at(tx: Any, position: int) -> tuple[list[Any], int]:
    """The values of the local variables that are loaded from here on, and where that ends."""
    values: list[Any] = []
    while tx.instructions[position].opname.startswith("LOAD_FAST"):
        name = tx.instructions[position].argval
        for each in name if isinstance(name, tuple) else (name,):
            if each not in tx.symbolic_locals:
                return [], position
            values.append(tx.symbolic_locals[each].realize())
        position += 1
    return values, position


def _is_placewise(into: Any, source: Any, mask: Any) -> bool:
    """Whether a mask selects the same places of two tensors of one kind."""
    if not all(value.is_tensor() for value in (into, source, mask)):
        return False
    x, y, chosen = (v.as_proxy().node.meta["example_value"] for v in (into, source, mask))
    covers = 0 < chosen.dim() <= x.dim() and tuple(x.shape[: chosen.dim()]) == tuple(chosen.shape)
    alike = x.dtype is y.dtype and x.device == y.device and tuple(x.shape) == tuple(y.shape)
    return bool(covers and alike and chosen.dtype is torch.bool)


def _copy(x: Tensor, y: Tensor, mask: Tensor) -> None:
    """`x[mask] = y[mask]`; Dynamo captures it."""
    mask = mask.reshape(mask.shape + (1,) * (x.dim() - mask.dim()))
    x.copy_(torch.where(mask, y, x))
