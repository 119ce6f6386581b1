"""Gelu, exact and by tanh, and BiasGelu."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from .case import Case, case, normal

_GELU = "aten.gelu.default"


def _bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(x + bias)


def cases() -> list[Case]:
    return [
        case(_GELU, lambda n: (3 * normal(n, 3),)),
        case(_GELU, lambda n: (3 * normal(n, 3),), approximate="tanh", label="-tanh"),
        case(_GELU, lambda n: (normal(2, n, 1, 3, 2),), label="-5d"),
        case(
            _GELU,
            lambda n: (normal(n, 2, 5), normal(5)),
            function=_bias_gelu,
            contains="BiasGelu",
            label="-bias",
        ),
    ]
