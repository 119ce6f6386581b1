"""Runs `torch.func.linearize`, and the function that it returns, in Python.

It traces its function in each call, and Dynamo would guard the graph module that comes out: a capture for each call.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import linearize

from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import break_graph, capturing_compiler, patch

_REASON = "torch.func.linearize, which traces its function anew in each call"
_CODES = {
    linearize.__code__,
    *(part for part in linearize.__code__.co_consts if isinstance(part, types.CodeType)),
}


def _probe(trial: Trial) -> bool:
    def moved(x: Tensor) -> Tensor:
        y, push = linearize(torch.sin, x)
        return (y + push(x * 2)).cos()

    same = trial(lambda: moved, *((torch.ones(3, requires_grad=True),) for _ in range(4)))
    return same and trial.captures < 4


@patch(
    "linearized",
    "`torch.func.linearize` runs in Python instead of being captured in each call.",
    "torch._dynamo.variables.functions:UserFunctionVariable.call_function",
    probe=_probe,
    needed_by=None,
)
def _call(call: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    if getattr(self.fn, "__code__", None) in _CODES:
        compiler: Any = capturing_compiler()
        compiler.log.transforms.run_in_python(_CODES)
        break_graph(_REASON, "Each call would be a capture.", "Call torch.func.jvp instead.")
    return call(self, tx, args, kwargs)
