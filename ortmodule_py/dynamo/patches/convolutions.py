"""Keeps torch's choice of a library for a convolution from dividing batches.

For the strides of the result torch asks its rules, on symbolic sizes, which library runs the convolution. They ask
whether the batch has 16 images or more: a guard, so that the last batch of an epoch would be a capture of its own.
Strides follow from the library only where an operand lies channels-last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import patch


def _probe(trial: Trial) -> bool:
    def make() -> nn.Module:
        torch.manual_seed(0)
        return nn.Conv2d(2, 3, 1)

    images = ((torch.ones(rows, 2, 3, 3),) for rows in (20, 4, 17))
    return trial(make, *images) and trial.captures == 1


@patch(
    "convolutions",
    "Batches of fewer than 16 images need no capture of their own.",
    "torch._C:_select_conv_backend",
    probe=_probe,
    needed_by=None,
)
def _select(select: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    given = dict(zip(("input", "weight"), args, strict=False)) | kwargs
    image, weight = given["input"], given["weight"]
    shape_env = getattr(getattr(image, "fake_mode", None), "shape_env", None)
    if shape_env is None or _is_channels_last(image) or _is_channels_last(weight):
        return select(*args, **kwargs)
    with shape_env.suppress_guards():
        return select(*args, **kwargs)


def _is_channels_last(tensor: Tensor) -> bool:
    """Whether the channels of a pixel may lie side by side, without a guard.

    Sequences of torch's never do: it copies them first.
    """
    return tensor.dim() > 3 and _now(tensor.stride(1)) == 1 and _now(tensor.stride(-1)) > 1


def _now(number: int | torch.SymInt) -> int:
    if isinstance(number, int):
        return number
    return 1 if free_unbacked_symbols(number) else int(number.node.hint)
