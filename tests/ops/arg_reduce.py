"""ArgMax, ArgMin and extrema with their places."""

from __future__ import annotations

from .case import Case, case, integers, normal


def cases() -> list[Case]:
    result = []
    for side in ("max", "min"):
        arg, pair = f"aten.arg{side}.default", f"aten.{side}.dim"
        result += [
            case(arg, lambda n: (normal(n, 3), 1)),
            case(arg, lambda n: (normal(n, 3),), label="-all"),
            case(arg, lambda n: (normal(n, 3), 0, True), label="-keep"),
            case(arg, lambda n: (normal(n, 3), None, True), label="-all_keep"),
            case(arg, lambda n: (integers(100, n, 3), 0), label="-integers"),
            case(pair, lambda n: (normal(n, 3), 1)),
            case(pair, lambda n: (normal(n, 3), 0, True), label="-keep"),
            case(pair, lambda n: (normal(2, n, 1, 3, 2), 1), label="-5d"),
        ]
    return result
