"""Results of a piece that the program changes in place behind it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.semantics import Calls, as_in_eager


def _attention(self: Any, x: Tensor) -> Tensor:
    """Backward reads a copy of a part of `y` in eager PyTorch, `y` itself in the engine."""
    y = self.fc(x).softmax(-1).masked_fill(x > 0.9, 0.0)
    mixed = y[:, :2].clone().T @ self.fc(x)
    print(end="")
    y[0, 1] = 0
    return mixed.sum() + y.square().sum()


def _by_method(self: Any, x: Tensor) -> Tensor:
    y = self.fc(x).softmax(-1).masked_fill(x > 0.9, 0.0)
    mixed = y[:, :2].clone().T @ self.fc(x)
    print(end="")
    y.mul_(2)
    return mixed.sum() + y.square().sum()


def _mixed(y: Tensor, z: Tensor) -> Tensor:
    print(end="")
    return y[:, :2].clone().T @ z


def _by_caller(self: Any, x: Tensor) -> Tensor:
    """A piece of another function reads `y` before this one changes it."""
    y = self.fc(x).softmax(-1).masked_fill(x > 0.9, 0.0)
    mixed = _mixed(y, self.fc(x))
    y[0, 1] = 0
    return mixed.sum() + y.square().sum()


@pytest.mark.parametrize("function", [_attention, _by_method, _by_caller])
def test_a_result_is_changed_behind_a_graph_break(function: Any) -> None:
    def step(model: Any) -> list[Tensor]:
        result = model(torch.linspace(-1, 1, 12).view(3, 4))
        result.backward()
        return [result]

    as_in_eager(Calls(function), step)
