"""Numbers that are no integers: `1 / sqrt(length)`, or a float argument that changes.

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


def write_float(
    expr: sympy.Expr,
    integer: Callable[[sympy.Expr], Any],
    argument: Callable[[str], int | None],
    call: Call,
) -> int:
    """Id of `expr` as a float64 scalar.

    `integer` encodes an integer expression, `argument` gives the tensor of a float argument.
    """

    def write(part: sympy.Expr) -> int:
        return write_float(part, integer, argument, call)

    if isinstance(expr, sympy.Symbol) and not expr.is_integer:
        known = argument(expr.name)
        if known is None:
            raise UnknownFloat(expr.name)
        return known
    if expr.is_number:
        return call("aten.scalar_tensor.default", {"s": float(expr)})
    name = type(expr).__name__
    if expr.is_integer:
        return call("aten.scalar_tensor.default", {"s": integer(expr)})
    parts = expr.args
    if name in ("ToFloat", "TruncToFloat") and parts[0].is_integer:
        return write(parts[0])
    if name in _UNARY:
        return call(_UNARY[name], {"self": write(parts[0])})
    if name in _BINARY:
        left, right = (write(part) for part in parts)
        second = "exponent" if "pow" in _BINARY[name] else "other"
        return call(_BINARY[name], {"self": left, second: right})
    if name in ("Add", "Mul"):
        target = "aten.add.Tensor" if name == "Add" else "aten.mul.Tensor"
        value = write(parts[0])
        for part in parts[1:]:
            value = call(target, {"self": value, "other": write(part)})
        return value
    raise UnknownFloat(name)
