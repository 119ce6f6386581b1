"""Breaks the graph at collectives of torch.distributed, so that eager PyTorch runs them.

Dynamo would replace them by functional ones, which do not write into the caller's tensor, wait at
another time, and have other gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, fx

from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import break_graph, calls, patch

_BREAK = "collective of torch.distributed"
_FUNCTIONAL = ("_c10d_functional.", "c10d_functional.", "_dtensor.")


def _probe(trial: Trial) -> bool:
    """Without a process group the collective raises, but must do so behind a graph break."""
    if not dist.is_available():
        return True

    def reduced(x: Tensor) -> Tensor:
        y = x * 2
        dist.all_reduce(y)
        return y

    return trial(lambda: reduced, (torch.ones(3),)) and any(_BREAK in b for b in trial.graph_breaks)


def _has_functional_ones(gm: fx.GraphModule) -> bool:
    return any(
        str(target).startswith(_FUNCTIONAL)  # overloads and packets of overloads
        or str(getattr(target, "__module__", "")).startswith("torch.distributed")
        for target in calls(gm)
    )


@patch(
    "collectives",
    "Collectives of torch.distributed run in eager PyTorch, between compiled pieces.",
    "torch._dynamo.variables.functions:CollectiveFunctionRewriteVariable.call_function",
    probe=_probe,
    needed_by=_has_functional_ones,
)
def _refused(call_function: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    break_graph(_BREAK, "Eager PyTorch runs collectives, between the compiled pieces.")
