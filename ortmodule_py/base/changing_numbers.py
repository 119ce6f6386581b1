"""Which Python numbers of a captured program change from call to call."""

from __future__ import annotations

from typing import Any

import sympy
import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils._sympy.symbol import SymT, symbol_is_type

Fixed = tuple[str, tuple[str, str], tuple[float | int, ...]]
"""What specialized numbers that change, where, and their values in this call."""

SIZE = "a size or an index"
"""What messages call an integer that is used for more than arithmetic."""


def changes(value: Any) -> bool:
    """Whether `value` is a symbolic float, or a symbolic integer that depends on a float."""
    if isinstance(value, fx.Node):
        value = value.meta.get("val")
    if isinstance(value, torch.SymFloat):
        return not value.node.expr.is_number
    return isinstance(value, torch.SymInt) and has_float(value.node.expr)


def values_in(value: Any) -> tuple[float | int, ...]:
    """The values in this call of the numbers in `value` that change, without a guard."""
    if isinstance(value, (list, tuple)):
        return tuple(number for item in value for number in values_in(item))
    return (value_now(value),) if changes(value) else ()


def value_now(value: Any) -> float | int:
    """The value in this call of a symbolic number, without a guard; 0 if it is read from a tensor."""
    if isinstance(value, fx.Node):
        value = value.meta.get("val")
    if free_unbacked_symbols(value):
        return 0
    return float(value.node.hint) if isinstance(value, torch.SymFloat) else int(value.node.hint)


def is_same(a: Any, b: Any) -> bool:
    """Whether two sizes are the same number or the same expression, without a guard."""
    left = a.node.expr if isinstance(a, torch.SymInt) else a
    right = b.node.expr if isinstance(b, torch.SymInt) else b
    return bool(left == right)


def has_float(expr: sympy.Expr) -> bool:
    """Whether `expr` depends on a float of the program."""
    return any(symbol_is_type(symbol, SymT.FLOAT) for symbol in expr.free_symbols)


def call_name(target: Any) -> str:
    """What messages call a function or method of a graph of Dynamo's."""
    if isinstance(target, torch._ops.OpOverload):
        return str(target).removesuffix(".default")
    return str(getattr(target, "__name__", target))
