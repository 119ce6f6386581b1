"""Keeps `Tensor.random_` in the graph, where Dynamo breaks it.

Its operator's name has the word `from`, which the code of an ATen graph cannot hold; our trace writes it as
another one (`trace/record`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import patch


def _probe(trial: Trial) -> bool:
    def fill(x: Tensor) -> Tensor:
        return x * torch.zeros_like(x).random_(3, 4)

    same = trial(lambda: fill, (torch.ones(3),))
    return same and not trial.graph_breaks


@patch(
    "draws_in_place",
    "Tensor.random_ breaks no graph.",
    "torch._dynamo.variables.tensor:TensorVariable.call_method",
    probe=_probe,
    needed_by=None,
)
def _call(
    call_method: Callable[..., Any],
    self: Any,
    tx: Any,
    name: str,
    args: Sequence[Any],
    kwargs: dict[str, Any],
) -> Any:
    if name != "random_" or kwargs:
        return call_method(self, tx, name, args, kwargs)
    operands = [value.as_proxy() for value in (self, *args)]
    proxy = tx.output.create_proxy("call_method", name, tuple(operands), {})
    return torch._dynamo.variables.builder.wrap_fx_proxy(tx, proxy)
