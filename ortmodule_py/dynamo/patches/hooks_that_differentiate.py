"""Breaks the graph at a hook of a tensor that differentiates, as equilibrium models solve for their gradient.

Such a hook runs while the backward pass of what follows it does. Dynamo would put both into one piece, whose
outputs share one backward pass where they share saved activations, under CUDA graphs and with values on the host: the
hook would ask for a second one.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import break_graph, patch

_REASON = "a hook of a tensor differentiates"


class _Equilibrium(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((3,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        z = torch.tanh(x * self.weight)
        start = z.clone().detach().requires_grad_()
        again = torch.tanh(start * self.weight)

        def solve(gradient: Tensor) -> Tensor:
            (found,) = torch.autograd.grad(again, start, gradient, retain_graph=True)
            return gradient + found

        z.register_hook(solve)
        return z * self.weight


def _probe(trial: Trial) -> bool:
    same = trial(_Equilibrium, (torch.ones(3),))
    return same and any(reason.startswith(_REASON) for reason in trial.graph_breaks)


@patch(
    "hooks_that_differentiate",
    "What hooks of tensors differentiate has a backward pass of its own.",
    "torch._dynamo.variables.tensor:TensorVariable.call_method",
    probe=_probe,
    needed_by=None,
)
def _call(call: Callable[..., Any], self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
    if name == "register_hook" and _may_break(tx):
        _break_if_it_differentiates(args[0] if args else kwargs.get("hook"))
    return call(self, tx, name, args, kwargs)


def _may_break(tx: Any) -> bool:
    """Whether no function is being taken up again, which a break would make an error."""
    while tx is not None:
        if getattr(tx, "is_tracing_resume_prologue", False):
            return False
        tx = getattr(tx, "parent", None)
    return True


def _break_if_it_differentiates(hook: Any) -> None:
    get_code = getattr(hook.realize() if hook is not None else None, "get_code", None)
    if get_code is not None and any(map(_differentiates, _codes(get_code()))):
        break_graph(
            _REASON,
            "What it differentiates must have a backward pass apart from that of what follows.",
        )


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code and that of the functions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _differentiates(code: types.CodeType) -> bool:
    names = {*code.co_names, *code.co_freevars}
    return "backward" in names or {"autograd", "grad"} <= names
