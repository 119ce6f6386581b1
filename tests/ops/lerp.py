"""Lerp."""

from __future__ import annotations

from .case import Case, case, normal, numbers, unit


def cases() -> list[Case]:
    return [
        case("aten.lerp.Scalar", lambda n: (normal(n, 3), normal(n, 3), 0.3)),
        case("aten.lerp.Scalar", lambda n: (normal(n, 3), normal(3), 0.9), label="-far"),
        case("aten.lerp.Scalar", lambda n: (normal(n, 3), normal(n, 3), 1.0), label="-end"),
        case("aten.lerp.Tensor", lambda n: (normal(n, 3), normal(n, 3), unit(n, 3))),
        case("aten.lerp.Tensor", lambda n: (normal(n, 3), normal(n, 3), unit(3)), label="-row"),
        case(
            "aten.lerp.Tensor",
            lambda n: (normal(n, 3), normal(1, 3), numbers(0.0, 0.5, 1.0)),
            label="-ends",
        ),
    ]
