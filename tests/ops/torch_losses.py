"""Losses that are compositions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .case import Case, case, classes, integers, normal, positive, unit

_BCE = "aten.binary_cross_entropy_with_logits.default"


def _loss_alone(operator: Callable[..., Any]) -> Callable[..., Any]:
    """Without the total weight, which only torch's own backward reads."""
    return lambda *args: operator(*args)[0]


def _reduction(code: int) -> list[Case]:
    label = "-" + ("none", "mean", "sum")[code]

    def loss(target: str, build: Callable[[int], Any], **options: Any) -> Case:
        return case(f"aten.{target}.default", build, label=label, **options)

    return [
        loss("mse_loss", lambda n: (normal(n, 3), normal(n, 3), code)),
        loss("l1_loss", lambda n: (normal(n, 3), normal(n, 3), code)),
        loss("smooth_l1_loss", lambda n: (normal(n, 3), normal(n, 3), code, 0.5)),
        loss("huber_loss", lambda n: (normal(n, 3), normal(n, 3), code, 0.7)),
        case(_BCE, lambda n: (normal(n, 3), unit(n, 3), None, None, code), label=label),
        case(
            _BCE,
            lambda n: (normal(n, 3), unit(n, 3), positive(3), positive(3), code),
            constant=(2, 3),
            label=f"{label}-weighted",
        ),
        loss(
            "nll_loss",
            lambda n: (normal(n, 5), classes(5, n), positive(5), code),
            constant=(2,),
        ),
        loss("nll_loss_nd", lambda n: (normal(n, 5, 3), integers(5, n, 3), None, code)),
        loss(
            "nll_loss_forward",
            lambda n: (normal(n, 5), classes(5, n), None, code, -100),
            function=_loss_alone(torch.ops.aten.nll_loss_forward.default),
        ),
        loss(
            "nll_loss2d_forward",
            lambda n: (normal(n, 5, 2, 3), integers(5, n, 2, 3), None, code, -100),
            function=_loss_alone(torch.ops.aten.nll_loss2d_forward.default),
        ),
    ]


def cases() -> list[Case]:
    return [
        *(c for code in (0, 1, 2) for c in _reduction(code)),
        case("aten.nll_loss_nd.default", lambda n: (normal(5), torch.tensor(2)), label="-single"),
    ]
