"""Gelu, exact and by tanh, and BiasGelu."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from .case import Case, case, normal

_GELU = "aten.gelu.default"
_IN_A_PRODUCT = ("cuda", "float16", "bfloat16")


def _bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(x + bias)


def _fast_gelu_of_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return F.gelu(F.linear(x, weight, bias), approximate="tanh")


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
        case(
            _GELU,
            lambda n: (normal(n, 5), normal(16, 5), normal(16)),
            function=_fast_gelu_of_linear,
            contains="GemmFastGelu",
            contains_on=_IN_A_PRODUCT,
            label="-linear",
        ),
        case(
            _GELU,
            lambda n: (normal(2, n, 5), normal(16, 5), normal(16)),
            function=_fast_gelu_of_linear,
            contains="GemmFastGelu",
            contains_on=_IN_A_PRODUCT,
            label="-linear-3d",
        ),
        case(
            _GELU,
            lambda n: (normal(2, n, 5), normal(8, 5)),
            function=_fast_gelu_of_linear,
            contains="GemmFastGelu",
            contains_on=_IN_A_PRODUCT,
            label="-linear-no_bias",
        ),
    ]
