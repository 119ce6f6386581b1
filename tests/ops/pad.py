"""Pad."""

from __future__ import annotations

from .case import Case, case, integers, normal

_PAD = "aten.constant_pad_nd.default"


def cases() -> list[Case]:
    return [
        case(_PAD, lambda n: (normal(n, 3), [1, 2])),
        case(_PAD, lambda n: (normal(n, 3), [1, 2, 3, 4], 0.5), label="-value"),
        case(_PAD, lambda n: (normal(n, 3), [-1, 2]), label="-crop"),
        case(_PAD, lambda n: (normal(n, 5), [-1, -2]), label="-crop_only"),
        case(_PAD, lambda n: (integers(9, n), [0, 3], -1), label="-integers"),
        case(_PAD, lambda n: (normal(2, n, 1, 3, 2), [0, 1, 0, 0, 2, 0]), label="-5d"),
        case(_PAD, lambda n: (normal(3, 2), [0, n]), label="-size"),
        case(_PAD, lambda n: (normal(3, n), [0, 4 - n]), label="-to_size"),
    ]
