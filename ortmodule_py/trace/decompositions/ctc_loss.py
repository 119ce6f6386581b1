"""The CTC loss as an operator whose sizes are known before it runs.

torch saves a matrix for backward whose width is the longest target, which only data tells. This operator
computes the gradient of the log-probabilities in forward instead, as large as they are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_LIBRARY = torch.library.Library("ortmodule_py", "FRAGMENT")
# It reads the log-probabilities only because its result depends on them: a second derivative is an error.
_LIBRARY.define("ctc_gradient(Tensor gradients, Tensor of_each, Tensor log_probs) -> Tensor")


@torch.library.custom_op("ortmodule_py::ctc_loss", mutates_args=())
def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    zero_infinity: bool,
    with_gradient: bool,
) -> tuple[Tensor, Tensor]:
    """The loss of each sequence, and the gradient of each loss; the latter is empty if not wanted."""
    given = (log_probs, targets, input_lengths, target_lengths)
    losses, alpha = torch.ops.aten._ctc_loss.Tensor(*given, blank, zero_infinity)
    if not with_gradient:
        return losses, log_probs.new_empty(0)
    gradient = torch.ops.aten._ctc_loss_backward.Tensor(
        torch.ones_like(losses), *given, losses, alpha, blank, zero_infinity
    )
    return losses, gradient


@ctc_loss.register_fake
def _(log_probs: Any, targets: Any, *lengths: Any) -> tuple[Tensor, Tensor]:
    losses = log_probs.new_empty(log_probs.shape[1])
    return losses, log_probs.new_empty(log_probs.shape if lengths[-1] else 0)


@torch.library.impl(_LIBRARY, "ctc_gradient", "CompositeExplicitAutograd")
def _ctc_gradient(gradients: Tensor, of_each: Tensor, log_probs: Tensor) -> Tensor:
    return gradients[:, None] * of_each


@torch.library.register_fake("ortmodule_py::ctc_gradient")
def _(gradients: Any, of_each: Any, log_probs: Any) -> Tensor:
    return of_each.new_empty(of_each.shape)


def _refuse(ctx: Any, gradient: Tensor) -> Any:
    raise RuntimeError("[gradient] the CTC loss has no second derivative, as in eager PyTorch")


torch.library.register_autograd("ortmodule_py::ctc_gradient", _refuse, lib=_LIBRARY)


class CtcLoss(torch.autograd.Function):
    """The loss of each sequence; Dynamo traces this function."""

    @staticmethod
    def forward(
        ctx: Any,
        log_probs: Tensor,
        targets: Tensor,
        input_lengths: Tensor,
        target_lengths: Tensor,
        blank: int,
        zero_infinity: bool,
        with_gradient: bool,
    ) -> Tensor:
        given = (log_probs, targets, input_lengths, target_lengths)
        losses, gradient = ctc_loss(*given, blank, zero_infinity, with_gradient)
        ctx.save_for_backward(gradient, log_probs)
        return losses

    @staticmethod
    def backward(ctx: Any, gradients: Tensor) -> Any:
        gradient = torch.ops.ortmodule_py.ctc_gradient(gradients, *ctx.saved_tensors)
        return gradient, None, None, None, None, None, None
