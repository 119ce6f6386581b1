"""Computes a batch of gradients one by one: `torch.autograd.grad(..., is_grads_batched=True)` in forward.

Flows take the rows of a Jacobian so. Dynamo breaks the graph there, and the layers between are pieces of the
engine, whose backward pass has one gradient at a time.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import patch

_RETAINS = "retain_graph"


class _Divergence(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((3,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        y = torch.tanh(x * self.weight)
        many = torch.eye(3).repeat(6, 1)  # more than `inner_gradients` captures
        (rows,) = torch.autograd.grad(y, x, many, create_graph=True, is_grads_batched=True)
        return y + rows.diagonal().sum()


def _probe(trial: Trial) -> bool:
    return trial(_Divergence, (torch.ones(3),))


@patch(
    "batched_gradients",
    "`torch.autograd.grad` with `is_grads_batched` works in forward.",
    "torch._vmap_internals:_vmap",
    probe=_probe,
    needed_by=None,
    traced=True,
)
def _mapped(
    vmap: Callable[..., Any],
    func: Any,
    in_dims: Any = 0,
    out_dims: Any = 0,
    allow_none_pass_through: bool = False,
) -> Callable[..., Any]:
    variables = getattr(getattr(func, "__code__", None), "co_freevars", ())
    if _RETAINS not in variables:  # no call of `torch.autograd.grad`
        mapped: Callable[..., Any] = vmap(func, in_dims, out_dims, allow_none_pass_through)
        return mapped
    return lambda gradients: _one_by_one(func, gradients)


def _one_by_one(backward: Any, gradients: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    count = next(len(gradient) for gradient in gradients if gradient is not None)
    calls = [_retaining(backward)] * (count - 1) + [backward]
    found = [
        call(tuple(None if gradient is None else gradient[i] for gradient in gradients))
        for i, call in enumerate(calls)
    ]
    return tuple(
        None if any(row is None for row in rows) else torch.stack(rows)
        for rows in zip(*found, strict=True)
    )


def _retaining(backward: Any) -> Callable[..., Any]:
    """The backward pass, which may run again."""
    code = backward.__code__
    cells = dict(zip(code.co_freevars, backward.__closure__, strict=True))
    cells[_RETAINS] = types.CellType(True)
    return types.FunctionType(code, backward.__globals__, closure=tuple(cells.values()))
