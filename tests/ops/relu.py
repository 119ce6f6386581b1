"""Relu."""

from __future__ import annotations

from .case import Case, case, normal, numbers


def cases() -> list[Case]:
    return [
        case("aten.relu.default", lambda n: (normal(n, 3),)),
        case("aten.relu.default", lambda n: (normal(2, n, 1, 3, 2),), label="-5d"),
        case("aten.relu.default", lambda n: (numbers(0.0, -1.0, 1.0, -0.0),), label="-zero"),
    ]
