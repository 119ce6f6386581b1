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


def range_of_integers(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of `arange(n, -n, -1.0)` as integers, with its dtype, so that its length stays symbolic."""
    bounds = [*args, *(kwargs.get(name) for name in ("start", "end", "step"))]
    if "out" in kwargs or not any(isinstance(bound, float) for bound in bounds):
        return args, kwargs
    fractional = (isinstance(b, float) and not b.is_integer() for b in bounds)
    if any(fractional) or any(isinstance(bound, torch.SymFloat) for bound in bounds):
        return args, kwargs

    def whole(value: Any) -> Any:
        return int(value) if isinstance(value, float) else value

    dtype = kwargs.get("dtype") or torch.get_default_dtype()
    named = {name: whole(value) for name, value in kwargs.items()}
    return tuple(map(whole, args)), named | {"dtype": dtype}
