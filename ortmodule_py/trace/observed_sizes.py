"""Statistics of fake quantizers, which get their sizes in the first step."""

from __future__ import annotations

from typing import Any

import torch

from ortmodule_py.base.errors import CannotLower

_OBSERVES = getattr(torch, "fused_moving_avg_obs_fake_quant", None)
_RUNNING_MIN = 3
"""Its position among the arguments."""


def refuse_resized(target: Any, args: tuple[Any, ...]) -> None:
    """Raise for an operator that would resize its arguments.

    Raises:
        CannotLower: it is one; other sizes are another capture.
    """
    if target is not _OBSERVES or len(args) <= _RUNNING_MIN:
        return
    running_min = args[_RUNNING_MIN]
    if running_min.dim() == 1 and running_min.shape[0] == 0:
        raise CannotLower("a fake quantizer gives its statistics their sizes in its first step")
