"""Elementwise functions of one operand."""

from __future__ import annotations

from .case import Case, case, flags, integers, normal, positive, unit

_ANY = [
    "neg",
    "abs",
    "exp",
    "expm1",
    "sin",
    "cos",
    "tan",
    "sinh",
    "cosh",
    "erf",
    "sign",
    "floor",
    "ceil",
    "round",
    "trunc",
    "atan",
    "reciprocal",
]
_POSITIVE = ["log", "log1p", "sqrt", "rsqrt"]


def cases() -> list[Case]:
    result = []
    for name in _ANY:
        target = f"aten.{name}.default"
        result.append(case(target, lambda n: (3 * normal(n, 3),)))
        result.append(case(target, lambda n: (integers(5, n, 3, low=-2),), label="-integers"))
    for name in _POSITIVE:
        target = f"aten.{name}.default"
        result.append(case(target, lambda n: (positive(n, 3),)))
        result.append(case(target, lambda n: (integers(6, n, low=1),), label="-integers"))
    for name in ("asin", "acos"):
        result.append(case(f"aten.{name}.default", lambda n: (1.8 * unit(n, 3) - 0.9,)))
    result += [
        case("aten.exp.default", lambda n: (normal(2, n, 1, 3, 2),), label="-5d"),
        case("aten.sin.default", lambda n: (normal(),), label="-scalar"),
        case("aten.sign.default", lambda n: (flags(n),), label="-bool"),
        case("aten.tan.default", lambda n: (unit(131, n),), label="-large"),
    ]
    return result
