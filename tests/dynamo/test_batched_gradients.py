"""Gradients that forward takes as a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ortmodule_py import ORTModule, last_run_report
from ortmodule_py.dynamo.patches.table import running_torch
from tests.semantics import Calls, as_in_eager


def _jacobian(self: Any, x: Tensor) -> Tensor:
    """As flows take the trace of it."""
    x = x.clone().requires_grad_()
    y = self.fc(x).tanh()
    rows = torch.eye(4).unsqueeze(1).expand(4, *y.shape)
    (found,) = torch.autograd.grad(y, x, rows, create_graph=True, is_grads_batched=True)
    return y + torch.einsum("ibi->b", found).unsqueeze(1)


def _named(self: Any, x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    y = self.fc(x).tanh().sum(0)
    found: Any = torch.autograd.grad(
        y, {"x": x}, torch.eye(4), create_graph=True, is_grads_batched=True
    )
    return self.fc(found["x"].sum(0))


def _of_several(self: Any, x: Tensor) -> Tensor:
    """Two outputs, one without a gradient of its own, and an input that nothing reads."""
    x, unread = (value.clone().requires_grad_() for value in (x, x))
    y = self.fc(x).tanh()
    found = torch.autograd.grad(
        (y, y.square().sum()),
        (x, unread),
        (torch.ones(2, *y.shape), torch.arange(2.0)),
        allow_unused=True,
        is_grads_batched=True,
    )
    assert found[1] is None
    first: Tensor = self.fc(x) * found[0].sum(0)
    return first


def _of_many(self: Any, x: Tensor) -> Tensor:
    """More than are captured."""
    x = x.clone().requires_grad_()
    y = self.fc(x).tanh()
    rows = torch.linspace(-1, 1, 20 * y.numel()).view(20, *y.shape)
    (found,) = torch.autograd.grad(y, x, rows, create_graph=True, is_grads_batched=True)
    return y + found.square().sum(0)


FUNCTIONS = [_jacobian, _of_several, _of_many]
if running_torch() >= (2, 13):
    FUNCTIONS.append(_named)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_gradients_of_a_batch_are_those_of_eager(function: Callable[..., Any]) -> None:
    def step(model: Any) -> list[Tensor]:
        results = [model(torch.linspace(-1, 1, rows * 4).view(rows, 4)) for rows in (2, 3, 2)]
        sum(result.square().sum() for result in results).backward()
        report = last_run_report(model) if isinstance(model, ORTModule) else None
        if report is not None and running_torch() >= (2, 13):
            assert bool(report["graph_breaks"]) == (function is _of_many), report
        return results

    as_in_eager(Calls(function), step)
