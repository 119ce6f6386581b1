"""Sizes times and over floating point constants, as `int(n * 1.25 / 4)`, as fractions of integers."""

from __future__ import annotations

import fractions
import math

import sympy

ROUNDINGS = {"TruncToInt", "FloorToInt", "CeilToInt", "RoundToInt"}
"""Names of what makes an integer of a floating point number."""

_EXACT_SIZE = 2**40

Steps = tuple[tuple[str, float], ...]
"""Operators and constants, in Python's order."""


def scaled(number: sympy.Expr) -> tuple[sympy.Expr, fractions.Fraction] | None:
    """A size and the fraction whose product rounds to integers as `number` does; None if none is known to."""
    found = _size_and_steps(number)
    if found is None:
        return None
    size, steps = found
    if any(not 0 < constant < math.inf for _, constant in steps):
        return None
    fraction = _exact_fraction(steps)
    return None if fraction is None else (size, fraction)


def odd_part(constant: float) -> int:
    """The integer that a constant is a power of two away from; small if products with it are exact."""
    numerator = abs(constant.as_integer_ratio()[0])
    return numerator // (numerator & -numerator) if numerator else 0


def _size_and_steps(number: sympy.Expr) -> tuple[sympy.Expr, Steps] | None:
    kind, args = type(number).__name__, number.args
    if kind == "ToFloat":
        return args[0], ()
    if kind == "IntTrueDiv" and isinstance(args[1], sympy.Integer):
        return args[0], (("/", float(args[1])),)
    if isinstance(number, sympy.Mul) and len(args) == 2 and isinstance(args[0], sympy.Float):
        inner, step = args[1], ("*", float(args[0]))
    elif kind == "FloatTrueDiv" and isinstance(args[1], sympy.Float):
        inner, step = args[0], ("/", float(args[1]))
    else:
        return None
    found = _size_and_steps(inner)
    return None if found is None else (found[0], (*found[1], step))


def _exact_fraction(steps: Steps) -> fractions.Fraction | None:
    """Where all but one step are exact.

    One rounding does not reach the next integer, which is at least 1 / denominator away.
    """
    numerator, rounded = 1, False
    for name, constant in steps:
        odd = odd_part(constant)
        if odd != 1 and rounded:
            return None
        rounded |= odd != 1 and name == "/"
        numerator *= odd if name == "*" else 1
    fraction = fractions.Fraction(1)
    for name, constant in steps:
        exact = fractions.Fraction(constant)
        fraction = fraction * exact if name == "*" else fraction / exact
    greatest = max(numerator, fraction.numerator if rounded else 0)
    return fraction if greatest * _EXACT_SIZE < 2**53 else None
