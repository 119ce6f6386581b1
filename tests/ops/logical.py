"""Logical and bitwise ops."""

from __future__ import annotations

from .case import Case, case, flags, integers, normal


def cases() -> list[Case]:
    result = [
        case("aten.logical_not.default", lambda n: (integers(2, n, 3),)),
        case("aten.logical_not.default", lambda n: (flags(n),), label="-bool"),
        case("aten.bitwise_not.default", lambda n: (flags(n),)),
        case("aten.bitwise_not.default", lambda n: (integers(5, n),), label="-integers"),
    ]
    for name in ("and", "or", "xor"):
        logical = f"aten.logical_{name}.default"
        tensor, scalar = f"aten.bitwise_{name}.Tensor", f"aten.bitwise_{name}.Scalar"
        result += [
            case(logical, lambda n: (flags(n, 3), flags(3))),
            case(logical, lambda n: (integers(2, n), normal(n)), label="-mixed"),
            case(tensor, lambda n: (flags(n), flags(n))),
            case(tensor, lambda n: (integers(9, n, 3), integers(9, n, 1)), label="-integers"),
            case(tensor, lambda n: (flags(n), integers(9, n)), label="-mixed"),
            case(scalar, lambda n: (integers(9, n), 3)),
            case(scalar, lambda n: (flags(n), True), label="-bool"),
        ]
    return result
