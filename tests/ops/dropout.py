"""Dropout and BiasDropout: the mask is random, so its properties are checked."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from .case import Case, Outcome, case, flags, normal

_DROPOUT = "aten.dropout.default"
_BERNOULLI = "aten.bernoulli.p"
_NATIVE = "aten.native_dropout.default"


def _halves(outcome: Outcome) -> None:
    """Each element is dropped or doubled, in the result and in the gradient alike."""
    y, dy = outcome.outputs[0].detach(), outcome.grad_outputs[0]
    x = sum(outcome.inputs)
    kept = y != 0
    torch.testing.assert_close(y, torch.where(kept, 2 * x, 0.0))
    torch.testing.assert_close(outcome.grads[0], torch.where(kept, 2 * dy, 0.0))
    share = kept.double().mean()
    assert y.numel() < 500 or 0.4 < share < 0.6, f"{share:.3f} of the elements are kept"
    if len(outcome.outputs) > 1:
        assert torch.equal(outcome.outputs[1], kept)


def _bias_dropout(x: Tensor, bias: Tensor) -> Tensor:
    return F.dropout(x + bias, 0.5)


def _bias_halves(outcome: Outcome) -> None:
    _halves(outcome)
    assert outcome.grads[0] is not None
    torch.testing.assert_close(outcome.grads[1], outcome.grads[0].sum(0))


def _sevenths(outcome: Outcome) -> None:
    """Zeros and exact ones, of which seven in ten."""
    (y,) = outcome.outputs
    assert ((y == 0) | (y == 1)).all() and not y.requires_grad
    share = y.double().mean()
    assert y.numel() < 500 or 0.6 < share < 0.8, f"{share:.3f} of the elements are 1"


def cases() -> list[Case]:
    return [
        case(_BERNOULLI, lambda n: (normal(n, 131), 0.7), check=_sevenths, gradient=False),
        case(_BERNOULLI, lambda n: (normal(n, 3), 0.0), gradient=False, label="-zero"),
        case(_BERNOULLI, lambda n: (normal(n, 3), 1.0), gradient=False, label="-one"),
        case(_DROPOUT, lambda n: (normal(n, 131), 0.5, True), check=_halves),
        case(_DROPOUT, lambda n: (normal(n, 3), 0.5, False), label="-eval"),
        case(_DROPOUT, lambda n: (normal(n, 3), 0.0, True), label="-zero"),
        case(_DROPOUT, lambda n: (normal(n, 3), 1.0, True), label="-one"),
        # The mask of an empty tensor has another type in torch.
        case(_NATIVE, lambda n: (normal(n, 131), 0.5, True), check=_halves, sizes=(1,)),
        case(_NATIVE, lambda n: (normal(n, 3), 0.5, False), label="-eval", sizes=(1,)),
        case(
            "aten.native_dropout_backward.default",
            lambda n: (normal(n, 3), flags(n, 3), 2.0),
            gradient=False,
        ),
        case(
            _DROPOUT,
            lambda n: (normal(n, 131), normal(131)),
            function=_bias_dropout,
            check=_bias_halves,
            contains="BiasDropout",
            label="-bias",
        ),
    ]
