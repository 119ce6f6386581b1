"""Numbers that follow from sizes and are not integers, such as `1 / sqrt(length)`.

Sizes are integers all the way to the engine, so such a number is computed in the graph, as a
float64 tensor without dimensions, which promotes like the Python number that it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sympy

Call = Callable[[str, dict[str, Any]], int]
"""Writes one call with a float64 scalar as its output."""

_UNARY = {
    "OpaqueUnaryFn_sqrt": "aten.sqrt.default",
    "OpaqueUnaryFn_log": "aten.log.default",
    "OpaqueUnaryFn_log2": "aten.log2.default",
    "OpaqueUnaryFn_exp": "aten.exp.default",
}
_BINARY = {
    "FloatTrueDiv": "aten.div.Tensor",
    "IntTrueDiv": "aten.div.Tensor",
    "FloatPow": "aten.pow.Tensor_Tensor",
    "Pow": "aten.pow.Tensor_Tensor",
}


class UnknownFloat(Exception):
    """The expression uses a function that has no operator here."""


def write_float(expr: sympy.Expr, integer: Callable[[sympy.Expr], Any], call: Call) -> int:
    """Id of `expr` as a float64 scalar; `integer` encodes an integer expression."""
    if expr.is_number:
        return call("aten.scalar_tensor.default", {"s": float(expr)})
    name = type(expr).__name__
    if expr.is_integer:
        return call("aten.scalar_tensor.default", {"s": integer(expr)})
    parts = expr.args
    if name in ("ToFloat", "TruncToFloat") and parts[0].is_integer:
        return write_float(parts[0], integer, call)
    if name in _UNARY:
        return call(_UNARY[name], {"self": write_float(parts[0], integer, call)})
    if name in _BINARY:
        left, right = (write_float(part, integer, call) for part in parts)
        second = "exponent" if "pow" in _BINARY[name] else "other"
        return call(_BINARY[name], {"self": left, second: right})
    if name in ("Add", "Mul"):
        target = "aten.add.Tensor" if name == "Add" else "aten.mul.Tensor"
        value = write_float(parts[0], integer, call)
        for part in parts[1:]:
            value = call(target, {"self": value, "other": write_float(part, integer, call)})
        return value
    raise UnknownFloat(name)
