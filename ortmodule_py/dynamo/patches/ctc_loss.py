"""Captures the CTC loss as models of speech call it.

Dynamo breaks the graph there: what torch saves for backward has sizes that are data. Before the call models
turn cuDNN off, by a context manager that Dynamo does not know.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import patch
from ortmodule_py.trace.decompositions.ctc_loss import CtcLoss


def _probe(trial: Trial) -> bool:
    def loss(x: Tensor, targets: Tensor, lengths: Tensor) -> Tensor:
        return functional.ctc_loss(x.log_softmax(-1), targets, lengths + 2, lengths)

    x = torch.linspace(-1, 1, 36).view(4, 3, 3).requires_grad_()
    same = trial(lambda: loss, (x, torch.tensor([[1, 2], [2, 1], [1, 1]]), torch.tensor([2, 1, 1])))
    return same and not trial.graph_breaks


@patch(
    "ctc_loss",
    "The CTC loss is captured.",
    "torch.nn.functional:ctc_loss",
    probe=_probe,
    needed_by=None,
    traced=True,
)
def _ctc_loss(
    loss: Callable[..., Tensor],
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    given = (log_probs, targets, input_lengths, target_lengths)
    if not torch.compiler.is_dynamo_compiling() or not _is_plain(given, reduction):
        return loss(*given, blank, reduction, zero_infinity)
    with_gradient = torch.is_grad_enabled() and log_probs.requires_grad
    losses: Any = CtcLoss.apply(*given, blank, zero_infinity, with_gradient)
    if zero_infinity:
        losses = torch.where(losses == float("inf"), 0, losses)
    if reduction == "mean":
        return (losses / target_lengths.clamp_min(1)).mean()
    return losses.sum() if reduction == "sum" else losses


def _probe_flags(trial: Trial) -> bool:
    def scaled(x: Tensor) -> Tensor:
        with torch.backends.cudnn.flags(enabled=False):
            return x.sin() * 2

    return trial(lambda: scaled, (torch.ones(3),)) and not trial.eager_pieces


@patch(
    "cudnn_flags",
    "Without a GPU, flags of cuDNN around a CTC loss break no graph.",
    "torch.backends.cudnn:flags",
    probe=_probe_flags,
    needed_by=None,
    traced=True,
)
def _flags(flags: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if torch.compiler.is_dynamo_compiling() and not torch.cuda.is_available():
        return contextlib.nullcontext()
    return flags(*args, **kwargs)


def _is_plain(given: Any, reduction: str) -> bool:
    """Whether these are batches of tensors on the CPU, and no error of torch."""
    if not all(isinstance(value, Tensor) for value in given):
        return False
    log_probs, targets, *lengths = given
    known = reduction in ("mean", "sum", "none") and targets.dim() in (1, 2)
    return (
        known
        and log_probs.dim() == 3
        and log_probs.device.type == "cpu"
        and log_probs.dtype in (torch.float32, torch.float64)
        and all(value.dim() == 1 and not value.is_floating_point() for value in lengths)
    )
