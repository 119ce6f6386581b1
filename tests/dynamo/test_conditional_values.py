"""Conditions on data that only replace values: both are computed, and the condition selects one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.semantics import Calls, as_in_eager, assert_whole


def _clamped(self: Any, x: Tensor) -> Tensor:
    y = self.fc(x)
    if not torch.isfinite(y).all():
        bound = torch.finfo(y.dtype).max - 1000
        y = torch.clamp(y, min=-bound, max=bound)
    return y.clamp(-5, 5) * 2


def _halved(self: Any, x: Tensor) -> Tensor:
    y, z = self.fc(x), x.sin()
    if self.training and (y > 3).any():
        y, z = y * 0.5, -z
        y = y - 1
    y += z
    return y


def _chosen(self: Any, x: Tensor) -> Tensor:
    return _inner(self.fc(x).exp()).sum(-1)


def _inner(y: Tensor) -> Tensor:
    if y.max() > 30:
        y = y.nan_to_num().masked_fill(y > 30, 30.0)
    return y


def _steps(model: nn.Module) -> list[Tensor]:
    results = []
    for scale, rows in ((1.0, 3), (40.0, 4), (torch.inf, 3), (0.1, 5)):
        x = torch.linspace(0.1, 1, 4 * rows).view(rows, 4)
        x[0, 0] *= scale
        x.requires_grad_()
        y = model(x)
        y.nan_to_num(0, 0, 0).sum().backward()
        results += [y, x.grad]
    return results


@pytest.mark.parametrize("function", [_clamped, _halved, _chosen])
def test_values_that_a_condition_replaces(function: Callable[..., Tensor]) -> None:
    assert_whole(as_in_eager(Calls(function), _steps), 2)


def _squares(self: Any, x: Tensor) -> Tensor:
    """The gradient of a product with a value that may be infinite is none of 0."""
    y = self.fc(x)
    if (y > 3).any():
        y = y * y
    return y * 2


def _named_twice(self: Any, x: Tensor) -> Tensor:
    """Without the condition, `kept` is changed in place, too."""
    y = kept = self.fc(x)
    if (y > 3).any():
        y = y.clamp(max=3)
    y += 1
    return y + kept


def _unrelated(self: Any, x: Tensor) -> Tensor:
    """In eager the replaced value has no gradient, which would be infinite."""
    y, z = self.fc(x), x.sin()
    if (y > 3).any():
        z = y.clamp(max=3)
    return y + z


def _of_another_size(self: Any, x: Tensor) -> Tensor:
    y, wide = self.fc(x), x.new_zeros(2, 1, 4)
    if (y > 3).any():
        y = torch.maximum(y, wide)
    return y * 2


@pytest.mark.parametrize("function", [_squares, _named_twice, _unrelated, _of_another_size])
def test_other_conditions_break_the_graph(function: Callable[..., Tensor]) -> None:
    report = as_in_eager(Calls(function), _steps)
    assert "a condition depends on the values" in str(report["graph_breaks"])
