"""SoftmaxCrossEntropyLoss."""

from __future__ import annotations

import torch
from torch import Tensor

from .case import Case, case, classes, integers, normal, positive

_LOSS = "aten.cross_entropy_loss.default"


def _of_rows(scores: Tensor, *arguments: object) -> Tensor:
    """Of scores with the classes last, as a transposition that the loss need not make."""
    loss: Tensor = torch.ops.aten.cross_entropy_loss(scores.transpose(1, 2), *arguments)
    return loss


def _reduction(code: int) -> list[Case]:
    name = ("none", "mean", "sum")[code]
    return [
        case(_LOSS, lambda n: (normal(n, 5), classes(5, n), None, code), label=f"-{name}"),
        case(_LOSS, lambda n: (normal(n, 5, 3), integers(5, n, 3), None, code),
             label=f"-{name}-inner"),
        case(_LOSS, lambda n: (normal(n, 3, 5), classes(5, n, 3), positive(5), code, -100, 0.1),
             constant=(2,), function=_of_rows, label=f"-{name}-last"),
        case(_LOSS, lambda n: (normal(n, 5), classes(5, n), positive(5), code, -100, 0.1),
             constant=(2,), label=f"-{name}-weighted"),
        case(_LOSS, lambda n: (normal(n, 5), normal(n, 5).softmax(1), positive(5), code, -100, 0.1),
             constant=(2,), label=f"-{name}-soft"),
        case(_LOSS, lambda n: (normal(n, 5, 3), normal(n, 5, 3).softmax(1), None, code),
             label=f"-{name}-soft-inner"),
    ]  # fmt: skip


def cases() -> list[Case]:
    return [
        *(c for code in (0, 1, 2) for c in _reduction(code)),
        case(_LOSS, lambda n: (normal(5), torch.tensor(2)), label="-single"),
        case(_LOSS, lambda n: (normal(n, 131), classes(131, n, ignored=3), None, 1, 3),
             label="-wide"),
        case(_LOSS, lambda n: (normal(n, 5), integers(5, n), None, 1, -100, 0.2),
             label="-smoothed"),
    ]  # fmt: skip
