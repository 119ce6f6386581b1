"""ReduceLogSumExp."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .case import Case, case, integers, normal

_LOG_SUM_EXP = "aten.logsumexp.default"


def _hidden(n: int) -> Tensor:
    """Rows with an element that is hidden."""
    x = normal(n, 3)
    x[:, 0] = -math.inf
    return x


def cases() -> list[Case]:
    return [
        case(_LOG_SUM_EXP, lambda n: (normal(n, 3), [1])),
        case(_LOG_SUM_EXP, lambda n: (normal(2, n, 3), [0, 2], True), label="-keep"),
        case(_LOG_SUM_EXP, lambda n: (normal(n, 3) * 300, [1]), label="-large"),
        case(_LOG_SUM_EXP, lambda n: (_hidden(n), [1]), label="-hidden"),
        case(_LOG_SUM_EXP, lambda n: (integers(5, n, 3), [1]), label="-integers"),
        case(_LOG_SUM_EXP, lambda n: (normal(), [0]), label="-scalar"),
        case(_LOG_SUM_EXP, lambda n: (normal(n, 3, dtype=torch.bfloat16), [1]), label="-bf16"),
    ]
