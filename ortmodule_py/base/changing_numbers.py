"""Which Python numbers of a captured program change from call to call."""

from __future__ import annotations

from typing import Any

import sympy
import torch
from torch import fx
from torch.utils._sympy.symbol import SymT, symbol_is_type

SIZE = "a size or an index"
"""What messages call an integer that is used for more than arithmetic."""


def changes(value: Any) -> bool:
    """Whether `value` is a symbolic float, or a symbolic integer that depends on a float."""
    if isinstance(value, fx.Node):
        value = value.meta.get("val")
    if isinstance(value, torch.SymFloat):
        return not value.node.expr.is_number
    return isinstance(value, torch.SymInt) and has_float(value.node.expr)


def has_float(expr: sympy.Expr) -> bool:
    """Whether `expr` depends on a float of the program."""
    return any(symbol_is_type(symbol, SymT.FLOAT) for symbol in expr.free_symbols)


def any_changes(value: Any) -> bool:
    """Whether `value`, or an item of it, is such a number."""
    return any(map(any_changes, value)) if isinstance(value, (list, tuple)) else changes(value)


def call_name(target: Any) -> str:
    """What messages call a function or method of a graph of Dynamo's."""
    return str(getattr(target, "__name__", target))
