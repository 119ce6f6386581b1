"""LayerNormalization and SkipLayerNormalization."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from .case import Case, case, normal

_NORM = "aten.layer_norm.default"
_BF16 = torch.bfloat16


def _skip(x: Tensor, skip: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    total = x + skip
    return F.layer_norm(total, [6], weight, bias), total


def cases() -> list[Case]:
    return [
        case(_NORM, lambda n: (normal(2, n, 3), [3], normal(3), normal(3))),
        case(_NORM, lambda n: (normal(2, n, 3), [3]), label="-plain"),
        case(_NORM, lambda n: (normal(n, 3), [3], normal(3)), label="-no_bias"),
        case(_NORM, lambda n: (normal(n, 5, 3), [5, 3], normal(5, 3)), label="-two"),
        case(_NORM, lambda n: (normal(n, 131), [131], normal(131), normal(131)), label="-wide"),
        case(_NORM, lambda n: (normal(n, 2, 1, 3, 5), [5], normal(5), normal(5)), label="-5d"),
        case("aten.native_layer_norm.default", lambda n: (normal(n, 3), [3], normal(3), normal(3),
                                                          1e-5)),
        case(_NORM, lambda n: (normal(n, 3, dtype=_BF16), [3], normal(3, dtype=_BF16),
                               normal(3, dtype=_BF16)), label="-bf16"),
        case(
            _NORM,
            lambda n: (normal(2, n, 6), normal(2, n, 6), normal(6), normal(6)),
            function=_skip,
            contains="SkipLayerNormalization",
            label="-skip",
        ),
    ]  # fmt: skip
