"""Gradients that forward takes as a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.semantics import Calls, as_in_eager


def _jacobian(self: Any, x: Tensor) -> Tensor:
    """As flows take the trace of it."""
    x = x.clone().requires_grad_()
    y = self.fc(x).tanh()
    rows = torch.eye(4).unsqueeze(1).expand(4, *y.shape)
    (found,) = torch.autograd.grad(y, x, rows, create_graph=True, is_grads_batched=True)
    return y + torch.einsum("ibi->b", found).unsqueeze(1)


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


@pytest.mark.parametrize("function", [_jacobian, _of_several])
def test_gradients_of_a_batch_are_those_of_eager(function: Callable[..., Any]) -> None:
    def step(model: Any) -> list[Tensor]:
        results = [model(torch.linspace(-1, 1, rows * 4).view(rows, 4)) for rows in (2, 3, 2)]
        sum(result.square().sum() for result in results).backward()
        return results

    as_in_eager(Calls(function), step)
