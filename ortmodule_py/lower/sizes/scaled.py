"""Sizes times and over floating point constants, as `int(n * 1.25 / 4)`, as fractions of integers."""

from __future__ import annotations

import fractions
import functools
import math
import operator
from dataclasses import dataclass

import sympy

ROUNDINGS = {"TruncToInt", "FloorToInt", "CeilToInt", "RoundToInt"}
"""Names of what makes an integer of a floating point number."""

_EXACT_SIZE = 2**40
_TRIED_SIZE = 2**20
_OPERATORS = {"*": operator.mul, "/": operator.truediv}

Steps = tuple[tuple[str, float], ...]
"""Operators and constants, in Python's order."""


@dataclass
class Scaled:
    """`size` times `fraction`, which rounds to integers as the floating point number does."""

    size: sympy.Expr
    fraction: fractions.Fraction
    largest: int | None
    """The size up to which this is known, if there is any that a program may have beyond."""


def scaled(number: sympy.Expr, upwards: bool) -> Scaled | None:
    """What `number` is when it is rounded down or `upwards`; None if no fraction is known to do."""
    found = _size_and_steps(number)
    if found is None:
        return None
    size, steps = found
    if any(not 0 < constant < math.inf for _, constant in steps):
        return None
    exact = _exact_fraction(steps)
    if exact is not None:
        return Scaled(size, exact, None)
    tried = _tried_fraction(steps, upwards, not size.is_nonnegative)
    return Scaled(size, tried, _TRIED_SIZE) if tried is not None else None


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
    fraction = _product([(name, fractions.Fraction(constant)) for name, constant in steps])
    greatest = max(numerator, fraction.numerator if rounded else 0)
    return fraction if greatest * _EXACT_SIZE < 2**53 else None


@functools.cache
def _tried_fraction(steps: Steps, upwards: bool, negative: bool) -> fractions.Fraction | None:
    """Only where the result is an integer can rounding lead past it, as in 49 * (1 / 49)."""
    near = [(name, fractions.Fraction(c).limit_denominator(1000)) for name, c in steps]
    if any(float(part) != c for (_, part), (_, c) in zip(near, steps, strict=True)):
        return None
    fraction = _product(near)
    # Each constant and each step may be off by one part in 2**53.
    if _TRIED_SIZE * fraction.numerator * 4 * len(steps) >= 2**53:
        return None
    last = _TRIED_SIZE // fraction.denominator
    rounding = math.ceil if upwards else math.floor
    same = all(
        rounding(_computed(count * fraction.denominator, steps)) == count * fraction.numerator
        for count in range(-last if negative else 0, last + 1)
    )
    return fraction if same else None


def _product(steps: list[tuple[str, fractions.Fraction]]) -> fractions.Fraction:
    result = fractions.Fraction(1)
    for name, constant in steps:
        result = _OPERATORS[name](result, constant)
    return result


def _computed(size: int, steps: Steps) -> float:
    number = float(size)
    for name, constant in steps:
        number = number * constant if name == "*" else number / constant
    return number
