"""Captures the first use of a `functools.cached_property`, which holds a lock before Python 3.12.

Dynamo traces the property, and leaves the function to Python at the lock.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.variables.ctx_manager import NullContextVariable

from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import patch


class _Scaled(nn.Module):
    @functools.cached_property
    def factor(self) -> float:
        return 3.0

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


def _probe(trial: Trial) -> bool:
    return trial(_Scaled, (torch.ones(3),)) and not trial.eager_pieces


def _enter(enter: Callable[..., Any], self: Any, inst: Any) -> None:
    if self.f_code is functools.cached_property.__get__.__code__:
        self.stack[-1] = NullContextVariable()
    enter(self, inst)


if sys.version_info < (3, 12):
    patch(
        "cached properties",
        "The first use of a `functools.cached_property` leaves no function to Python.",
        "torch._dynamo.symbolic_convert:InstructionTranslatorBase.setup_or_before_with",
        probe=_probe,
        needed_by=None,
    )(_enter)
