"""Transpose in all its spellings."""

from __future__ import annotations

from .case import Case, case, normal


def cases() -> list[Case]:
    result = []
    for name in ("movedim", "moveaxis"):
        result += [
            case(f"aten.{name}.int", lambda n: (normal(n, 2, 3), 0, 2)),
            case(f"aten.{name}.intlist", lambda n: (normal(n, 2, 3, 4), [0, 2], [-1, 0])),
        ]
    for name in ("swapaxes", "swapdims"):
        result.append(case(f"aten.{name}.default", lambda n: (normal(n, 2, 3), 0, 2)))
    return [
        *result,
        case("aten.permute.default", lambda n: (normal(n, 2, 3), [2, 0, 1])),
        case("aten.permute.default", lambda n: (normal(n, 2, 3), [-1, 0, 1]), label="-negative"),
        case("aten.permute.default", lambda n: (normal(2, n, 1, 3, 2), [4, 2, 0, 3, 1]),
             label="-5d"),
        case("aten.transpose.int", lambda n: (normal(n, 2, 3), 1, 2)),
        case("aten.transpose.int", lambda n: (normal(n, 2, 3), -1, 0), label="-outer"),
        case("aten.t.default", lambda n: (normal(n, 3),)),
        case("aten.t.default", lambda n: (normal(n),), label="-1d"),
        case("aten.numpy_T.default", lambda n: (normal(n, 2, 3),)),
        case("aten.mT.default", lambda n: (normal(n, 2, 3),)),
    ]  # fmt: skip
