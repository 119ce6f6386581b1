"""Breaks the graph at the call of `retain_grad()`, where Dynamo gives up the rest of the function.

It refuses the attribute already, and cannot continue there. What is behind the call is then captured again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import break_graph, patch

_TENSOR = "torch._dynamo.variables.tensor:TensorVariable"


def _kept(x: Tensor) -> Tensor:
    y = x * 2
    y.retain_grad()
    z = y.sin() * 3
    return z.cos()


def _is_right(trial: Trial) -> bool:
    return trial(lambda: _kept, (torch.ones(3, requires_grad=True),))


def _probe_rest(trial: Trial) -> bool:
    return _is_right(trial) and trial.captures == 2


@patch(
    "retained_gradients",
    "What is behind a call of `retain_grad()` is compiled.",
    {(2, 13): f"{_TENSOR}.method_attr_retain_grad"},
    probe=_probe_rest,
    needed_by=None,
)
def _attribute(attribute: Callable[..., Any], self: Any, tx: Any) -> Any:
    return torch._dynamo.variables.GetAttrVariable(self, "retain_grad")


def _probe_call(trial: Trial) -> bool:
    return _is_right(trial) and any("retain_grad()" in reason for reason in trial.graph_breaks)


@patch(
    "calls of retain_grad",
    "`retain_grad()` breaks the graph, instead of leaving its piece to eager PyTorch.",
    {(2, 13): f"{_TENSOR}.call_method"},
    probe=_probe_call,
    needed_by=None,
)
def _call(call: Callable[..., Any], self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
    if name == "retain_grad":
        break_graph(
            "`retain_grad()` keeps the gradient of a value",
            "A piece has the gradients of its arguments only.",
        )
    return call(self, tx, name, args, kwargs)
