"""Captures `F.adaptive_avg_pool1d(x, n // 2)` once for all sizes.

Torch takes the number of results as a C++ int, which a capture makes a constant; the operator for images takes a
size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.variables import SymNodeVariable, UserFunctionVariable
from torch.nn import functional

from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import patch


def _averaged(input: Tensor, output_size: int) -> Tensor:
    return functional.adaptive_avg_pool2d(input.unsqueeze(-2), (1, output_size)).squeeze(-2)


def _probe(trial: Trial) -> bool:
    def halved(x: Tensor) -> Tensor:
        return functional.adaptive_avg_pool1d(x.reshape(1, 1, -1), len(x) // 2)

    given = ((torch.arange(n, dtype=torch.float32),) for n in (6, 8, 11, 14))
    return trial(lambda: halved, *given) and trial.captures <= 2


@patch(
    "adaptive pools",
    "`F.adaptive_avg_pool1d` to a number of elements that changes needs no new capture.",
    {(2, 13): "torch._dynamo.variables.torch:TorchInGraphFunctionVariable.call_function"},
    probe=_probe,
    needed_by=None,
)
def _call(call: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    if self.value is torch.adaptive_avg_pool1d:
        given = dict(zip(("input", "output_size"), args, strict=False)) | kwargs
        if isinstance(given.get("output_size"), SymNodeVariable):
            return UserFunctionVariable(_averaged).call_function(tx, [], given)
    return call(self, tx, args, kwargs)
