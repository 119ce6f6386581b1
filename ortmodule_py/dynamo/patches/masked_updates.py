"""Captures `x[mask] *= 2`, whose elements Dynamo would select, which breaks the graph.

The number of elements does not matter here: all are computed, and those outside of the mask stay.
"""

from __future__ import annotations

import math
import opcode
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.variables import ConstantVariable, UserFunctionVariable

from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import patch

_SYMBOLS = [symbol for _, symbol, *_ in getattr(opcode, "_nb_ops", ())]
"""Of each `BINARY_OP`; before Python 3.11 the instructions have names of their own."""
_NAMED = {
    "BINARY_SUBSCR": "[]",
    "INPLACE_ADD": "+=",
    "INPLACE_SUBTRACT": "-=",
    "INPLACE_MULTIPLY": "*=",
    "INPLACE_TRUE_DIVIDE": "/=",
}
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_STORED = [*(["SWAP", "SWAP"] if _SYMBOLS else ["ROT_THREE"]), "STORE_SUBSCR"]


def _probe(trial: Trial) -> bool:
    def scaled(x: Tensor) -> Tensor:
        y = x * 1
        y[x < 0] *= 0.5
        return y

    x = torch.linspace(-1, 1, 5, requires_grad=True)
    return trial(lambda: scaled, (x,), (-x.detach() + 1,)) and not trial.graph_breaks


@patch(
    "masked_updates",
    "`x[mask] *= 2` and the like break no graph.",
    {(2, 13): "torch._dynamo.symbolic_convert:InstructionTranslatorBase.step"},
    probe=_probe,
    needed_by=None,
)
def _step(step: Callable[..., Any], self: Any) -> Any:
    position = self.instruction_pointer
    if position is None or symbol_of(self.instructions[position]) != "[]":
        return step(self)
    update = _update_at(self, position)
    if update is None or not _is_masked(update, *self.stack[-4:]):
        return step(self)
    try:
        operands = [*self.stack[-4:-2], *map(ConstantVariable.create, update)]
        UserFunctionVariable(_update).call_function(self, operands, {})
    except torch._dynamo.exc.Unsupported:  # the graph breaks there, as without this row
        return step(self)
    del self.stack[-4:]
    self.instruction_pointer = position + 3 + len(_STORED)
    return True


def symbol_of(instruction: Any) -> str | None:
    """The operator of an instruction, `[]` for an index."""
    if instruction.opname == "BINARY_OP":
        return _SYMBOLS[instruction.arg]
    return _NAMED.get(instruction.opname)


def _update_at(tx: Any, position: int) -> tuple[str, float] | None:
    """Operator and number of `x[...] += 1`; None for another line."""
    following = tx.instructions[position + 1 : position + 3 + len(_STORED)]
    if [i.opname for i in following[2:]] != _STORED or len(tx.stack) < 4:
        return None
    load, operation, *_ = following
    symbol, number = symbol_of(operation), _number(tx, load)
    # Elements outside of the mask have a gradient of 0 times the number.
    if symbol not in ("+=", "-=", "*=", "/=") or number is None or not math.isfinite(number):
        return None
    return (symbol, number) if number or symbol != "/=" else None


def _number(tx: Any, load: Any) -> float | None:
    known = None
    if load.opname in ("LOAD_CONST", "LOAD_SMALL_INT"):
        known = load.argval
    elif load.opname.startswith("LOAD_FAST") and load.argval in tx.symbolic_locals:
        value = tx.symbolic_locals[load.argval].realize()
        known = value.as_python_constant() if value.is_python_constant() else None
    return known if type(known) in (int, float) else None


def _is_masked(update: tuple[str, float], tensor: Any, mask: Any, *again: Any) -> bool:
    """Whether a mask selects elements of a tensor of floats, or of integers that remain some."""
    if [id(value) for value in again] != [id(tensor), id(mask)]:
        return False
    tensor, mask = tensor.realize(), mask.realize()
    if not tensor.is_tensor() or not mask.is_tensor():
        return False
    x, chosen = (value.as_proxy().node.meta["example_value"] for value in (tensor, mask))
    same = 0 < chosen.dim() <= x.dim() and tuple(x.shape[: chosen.dim()]) == tuple(chosen.shape)
    symbol, number = update
    whole = x.dtype in _INTEGERS and type(number) is int and symbol != "/="
    return bool(same and chosen.dtype is torch.bool and (x.is_floating_point() or whole))


def _update(x: Tensor, mask: Tensor, symbol: str, number: float) -> None:
    """`x[mask] += number`; Dynamo captures it."""
    if symbol == "+=":
        new = x + number
    elif symbol == "-=":
        new = x - number
    elif symbol == "*=":
        new = x * number
    else:
        new = x / number
    mask = mask.reshape(mask.shape + (1,) * (x.dim() - mask.dim()))
    x.copy_(torch.where(mask, new, x))
