"""Breaks the graph at an `autograd.Function` that calls `ctx.set_materialize_grads(False)`.

Dynamo ignores the call: backward would get zeros instead of None for absent gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ortmodule_py.dynamo.patches.autograd_functions import applies_function
from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import patch

_METHOD = "set_materialize_grads"
_CONTEXT = "torch._dynamo.variables.misc:AutogradFunctionContextVariable"


class _Unmaterialized(torch.autograd.Function):
    """Its backward returns another gradient if one is absent."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx: Any, first: Tensor | None, second: Tensor | None) -> Any:
        return torch.full((3,), 7.0) if second is None else second


def _probe(trial: Trial) -> bool:
    x = torch.ones(3, requires_grad=True)
    return trial(lambda: lambda x: _Unmaterialized.apply(x)[0].tanh(), (x,))


@patch(
    "contexts",
    "An autograd.Function that calls set_materialize_grads(False) gets None for absent gradients.",
    # Since torch 2.14 Dynamo names the method like the slot of CPython's type.
    {(2, 11): f"{_CONTEXT}.var_getattr", (2, 14): f"{_CONTEXT}.tp_getattro_impl"},
    probe=_probe,
    needed_by=applies_function,
)
def _read(var_getattr: Callable[..., Any], self: Any, tx: Any, name: str) -> Any:
    """Look the method up as an unknown one, at which Dynamo breaks the graph."""
    if name != _METHOD:
        return var_getattr(self, tx, name)
    return torch._dynamo.variables.LambdaVariable(
        lambda *args, **kwargs: self.call_method(tx, name, list(args), kwargs)
    )
