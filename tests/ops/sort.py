"""Sort and TopK; equal elements come in eager's order."""

from __future__ import annotations

import torch

from .case import Case, case, integers, normal

_SORT = "aten.sort.default"
_STABLE = "aten.sort.stable"
_TOP = "aten.topk.default"


def cases() -> list[Case]:
    return [
        case(_SORT, lambda n: (normal(n, 5),)),
        case(_SORT, lambda n: (normal(7, n, 3), 0, True), label="-first"),
        case(_SORT, lambda n: (normal(2, n, 5, 1, 3), 2), label="-5d"),
        case(_SORT, lambda n: (normal(n, 600), 1), label="-long"),
        case(_SORT, lambda n: (integers(3, n, 40), 1), label="-ties"),
        case(_SORT, lambda n: (normal(n, 5), 0), function=lambda x, d: torch.sort(x.t(), d),
             label="-transposed"),
        case(_STABLE, lambda n: (normal(n, 40),), stable=True, dim=1, descending=True),
        case(_TOP, lambda n: (normal(n, 9), 3)),
        case(_TOP, lambda n: (normal(9, n), 2, 0, False), label="-smallest"),
        case(_TOP, lambda n: (normal(n, 700), 20, -1, True, True), label="-long"),
        case(_TOP, lambda n: (normal(4, n, 3), n, 1), label="-all"),
        case(_TOP, lambda n: (normal(2, n, 5, 1, 3), 5, 2), label="-5d"),
    ]  # fmt: skip
