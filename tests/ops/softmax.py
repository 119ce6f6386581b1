"""Softmax, LogSoftmax, their gradients and BiasSoftmax."""

from __future__ import annotations

import torch
from torch import Tensor

from .case import Case, case, integers, normal

_BACKWARD = "aten._softmax_backward_data.default"
_LOG_BACKWARD = "aten._log_softmax_backward_data.default"


def _with_empty_row(n: int) -> Tensor:
    x = normal(n, 3)
    x[-1:] = float("-inf")
    return x


def _bias_softmax(x: Tensor, bias: Tensor) -> Tensor:
    return torch.softmax(x + bias, -1)


def cases() -> list[Case]:
    result = []
    for target in ("aten.softmax.int", "aten.log_softmax.int"):
        result += [case(target, lambda n, d=d: (normal(n, 3), d)) for d in (0, 1, -1)]
        result += [
            case(target, lambda n: (normal(2, n, 1, 3, 2), 1), label="-5d"),
            case(target, lambda n: (normal(1, n), 0), label="-one"),
            case(target, lambda n: (normal(3, 131), 1), label="-wide"),
            case(target, lambda n: (normal(n, 3, dtype=torch.bfloat16), -1, torch.float32)),
            case(target, lambda n: (integers(3, n, 3), -1, torch.float32), label="-integers"),
            case(target, lambda n: (normal(), 0), label="-scalar", aten="scalar"),
        ]
    return [
        *result,
        case("aten._softmax.default", lambda n: (normal(n, 3), -1, False)),
        case("aten._log_softmax.default", lambda n: (normal(n, 3), 1, False)),
        case("aten._safe_softmax.default", lambda n: (_with_empty_row(n), -1)),
        case("aten._safe_softmax.default", lambda n: (normal(n, 3), 0)),
        case(
            _BACKWARD,
            lambda n: (normal(n, 3), normal(n, 3).softmax(-1), -1, torch.float64),
            gradient=False,
        ),
        case(
            _LOG_BACKWARD,
            lambda n: (normal(n, 3), normal(n, 3).log_softmax(0), 0, torch.float64),
            gradient=False,
        ),
        case(
            "aten.softmax.int",
            lambda n: (normal(n, 2, 5, 5), normal(n, 1, 1, 5)),
            function=_bias_softmax,
            contains="BiasSoftmax",
            label="-bias",
        ),
    ]
