"""Detached values that take on a gradient in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tests.semantics import Calls, as_in_eager, assert_compiled


def _steps(model: Any) -> list[Tensor]:
    results = []
    for rows in (3, 4, 5):
        y = model(torch.linspace(-1, 1, 4 * rows).view(rows, 4))
        y.square().sum().backward()
        results.append(y)
    return results


def _of_a_constant(self: Any, x: Tensor) -> Tensor:
    """Tables of positions, made under no_grad."""
    with torch.no_grad():
        positions = (x * 2).detach()
    positions += self.fc(x)
    return positions


def _added(self: Any, x: Tensor) -> Tensor:
    y = self.fc(x).detach()
    y += self.fc(x).tanh()
    return y * 2


def _part(self: Any, x: Tensor) -> Tensor:
    y = self.fc(x).detach()
    y[0] = self.fc(x)[1]
    return y * 2


def _through_a_view(self: Any, x: Tensor) -> Tensor:
    y = self.fc(x).detach()
    columns = y.view(-1, 4)[:, 1:]
    columns *= self.fc(x)[:, 1:]
    return y * 2


def _by_data(self: Any, x: Tensor) -> Tensor:
    y = self.fc(x).data
    y.mul_(self.fc(x))
    return y


def _read_before(self: Any, x: Tensor) -> Tensor:
    y = self.fc(x)
    p = y.detach()
    p += y.tanh()
    return p


def _in_a_checkpoint(self: Any, x: Tensor) -> Tensor:
    return checkpoint(_added, self, x, use_reentrant=False)  # type: ignore[no-any-return]


def _in_a_loop(self: Any, x: Tensor) -> Tensor:
    for _ in range(3):
        x = _added(self, x)
    return x


def _read_behind(self: Any, x: Tensor) -> Tensor:
    y = self.fc(x)
    p = y.detach()
    p += y.tanh()
    return p * 2 + y


def _changed_between(self: Any, x: Tensor) -> Tensor:
    y = self.fc(x) * 2
    p = y.detach()
    y += 1
    p += y.tanh()
    return p


APART = (_of_a_constant, _added, _part, _through_a_view, _by_data, _read_before)
NESTED = (_in_a_checkpoint, _in_a_loop)
SEEN = (_read_behind, _changed_between)


@pytest.mark.parametrize("function", APART + NESTED)
def test_it_has_its_gradient(function: Callable[..., Any]) -> None:
    assert_compiled(as_in_eager(Calls(function), _steps), captures=2)


@pytest.mark.parametrize("function", SEEN)
def test_it_runs_in_eager_if_its_memory_is_read(function: Callable[..., Any]) -> None:
    report = as_in_eager(Calls(function), _steps)
    assert "a detached value with shared memory" in "".join(report["eager_pieces"])
