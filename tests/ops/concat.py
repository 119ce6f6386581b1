"""Concat and stack."""

from __future__ import annotations

import torch

from .case import Case, case, flags, normal

_CAT = "aten.cat.default"


def cases() -> list[Case]:
    return [
        case(_CAT, lambda n: ([normal(n, 3), normal(n, 2)], 1)),
        case(_CAT, lambda n: ([normal(n, 3), normal(2, 3), normal(1, 3)], 0), label="-first"),
        case(_CAT, lambda n: ([normal(n, 3), normal(n, 3, dtype=torch.float32)], -1),
             label="-mixed"),
        case(_CAT, lambda n: ([normal(0), normal(n, 3)],), label="-empty"),
        case(_CAT, lambda n: ([normal(n, 0), normal(n, 3)], 1), label="-empty_part"),
        case(_CAT, lambda n: ([normal(n, 3)], 1), label="-single"),
        case(_CAT, lambda n: ([flags(n), flags(3)],), label="-bool"),
        case(_CAT, lambda n: ([normal(2, n, 1, 3, 2), normal(2, n, 5, 3, 2)], 2), label="-5d"),
        case("aten.stack.default", lambda n: ([normal(n, 3), normal(n, 3)], 1)),
        case("aten.stack.default", lambda n: ([normal(n, 3), normal(n, 3)], -1), label="-last"),
        case("aten.stack.default", lambda n: ([normal(), normal()],), label="-scalars"),
    ]  # fmt: skip
