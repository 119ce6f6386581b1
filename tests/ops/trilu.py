"""Trilu."""

from __future__ import annotations

from .case import Case, case, flags, normal


def cases() -> list[Case]:
    result = []
    for name in ("tril", "triu"):
        target = f"aten.{name}.default"
        result += [
            case(target, lambda n: (normal(n, 5),)),
            case(target, lambda n: (normal(2, n, n), 1), label="-above"),
            case(target, lambda n: (flags(5, n), -1), label="-bool"),
            case(target, lambda n: (normal(3, n), 20), label="-far"),
        ]
    return result
