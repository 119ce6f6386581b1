"""Draws numbers of any count where `generator=None` is given, as diffusers does.

The operators that take a generator have no form for symbolic sizes. Without one they are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import patch

_DRAWS = {torch.rand, torch.randn, torch.randint, torch.randperm}


def _probe(trial: Trial) -> bool:
    def scaled(x: Tensor) -> Tensor:
        return x.sin() + torch.rand(x.shape, generator=None) * 0

    same = trial(lambda: scaled, *((torch.ones(rows, 2),) for rows in (4, 6, 8)))
    return same and not trial.eager_pieces


@patch(
    "draws_without_generator",
    "Calls such as torch.randn(sizes, generator=None) are compiled.",
    "torch._dynamo.variables.torch:TorchInGraphFunctionVariable.call_function",
    probe=_probe,
    needed_by=None,
)
def _call(call: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    generator = kwargs.get("generator")
    if generator is not None and self.value in _DRAWS and generator.is_constant_none():
        kwargs = {name: value for name, value in kwargs.items() if name != "generator"}
    return call(self, tx, args, kwargs)
