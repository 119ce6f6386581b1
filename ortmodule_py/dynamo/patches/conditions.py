"""Conditions on tensors, at which Dynamo breaks the graph, with an outcome that a row of the table knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._dynamo.variables import ConstantVariable


def decide(tx: Any, outcome: Callable[[Any], bool | None]) -> None:
    """Replaces the tensor that the next instruction decides by with its outcome, if that is not None."""
    name = tx.instructions[tx.instruction_pointer].opname
    if not tx.stack or not (name == "TO_BOOL" or ("JUMP" in name and "_IF_" in name)):
        return
    value = tx.stack[-1].realize()
    found = outcome(value) if value.is_tensor() else None
    if found is not None:
        tx.stack[-1] = ConstantVariable.create(found)
