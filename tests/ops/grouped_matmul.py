"""Products of groups of rows; torch's operator has bfloat16 alone under a compiler."""

from __future__ import annotations

import torch
from torch import Tensor

from .case import Case, case, normal

_GROUPED = "aten._grouped_mm.default"


def _half(*sizes: int) -> Tensor:
    return normal(*sizes, dtype=torch.bfloat16)


def _ends(*ends: int) -> Tensor:
    return torch.tensor(ends, dtype=torch.int32)


def cases() -> list[Case]:
    return [
        case(
            _GROUPED,
            lambda n: (_half(n, 16), _half(3, 16, 8), _ends(1, 1, n)),
            contains="GroupedMatMul",
            sizes=(),
        ),
        case(
            _GROUPED,
            lambda n: (_half(n, 16), _half(3, 8, 16), _ends(1, 2, n)),
            function=lambda x, w, ends: torch.nn.functional.grouped_mm(x, w.mT, offs=ends),
            contains="GroupedOuterProduct",
            sizes=(),
            label="-transposed",
        ),
        case(
            _GROUPED,
            lambda n: (_half(3, n, 16), _half(3, 16, 8)),
            aten="must be of rows and one matrix for each group",
            sizes=(),
            label="-batch",
        ),
    ]
