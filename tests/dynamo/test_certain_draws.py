"""Conditions on drawn numbers: those with one outcome are captured."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.semantics import Calls, as_in_eager, assert_whole


def _steps(model: nn.Module) -> list[Tensor]:
    results = []
    for rows in (2, 3, 5):
        y = model(torch.linspace(-1, 1, 4 * rows).view(rows, 4))
        y.square().sum().backward()
        results.append(y)
    return results


def _report(condition: Callable[[Tensor], Any], steps: Callable[..., Any] = _steps) -> Any:
    def forward(self: Any, x: Tensor) -> Tensor:
        y: Tensor = self.fc(x)
        return y.tanh() if condition(y) else y * 2

    return as_in_eager(Calls(forward), steps)


CERTAIN: dict[str, Callable[[Tensor], Any]] = {
    "kept": lambda y: torch.rand(1) > 0.0,
    "never dropped": lambda y: torch.rand([]) < 0,
    "negative": lambda y: torch.rand(1) <= -0.5,
    "always": lambda y: torch.rand(()).ge(0.0),
    "at most one": lambda y: torch.rand(1, dtype=torch.float64) <= 1.0,
    "below one": lambda y: torch.lt(torch.rand(1, device=y.device), 1),
    "above one": lambda y: torch.rand_like(y[0, 0]) > 1,
    "random": lambda y: (
        random.random() < 0.0 or random.uniform(0, 1) < 0 or random.randint(2, 4) > 4
    ),
    "mirrored": lambda y: torch.rand(1) < 1 and 0.0 < torch.rand(1),  # noqa: SIM300
}


@pytest.mark.parametrize("name", CERTAIN)
def test_a_condition_with_one_outcome_is_captured(name: str) -> None:
    assert_whole(_report(CERTAIN[name]))


UNCERTAIN: dict[str, Callable[[Tensor], Any]] = {
    "half": lambda y: torch.rand(1) < 0.5,
    "of random": lambda y: random.uniform(0, 1) <= 0.0,
    "changed": lambda y: torch.rand(1).sub_(1) < 0,
    "normal": lambda y: torch.randn(1) < 0,
}


@pytest.mark.parametrize("name", UNCERTAIN)
def test_a_condition_with_two_outcomes_breaks_the_graph(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORTMODULE_RNG", "torch")
    assert _report(UNCERTAIN[name])["graph_breaks"]


def test_few_numbers_include_0() -> None:
    assert _report(lambda y: torch.rand(1, dtype=torch.bfloat16) > 0)["graph_breaks"]


def test_eagers_numbers_include_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """And are drawn, whether a condition needs them or not."""
    monkeypatch.setenv("ORTMODULE_RNG", "torch")
    assert _report(CERTAIN["kept"])["graph_breaks"]

    def draws(model: nn.Module) -> list[Tensor]:
        return [*_steps(model), torch.rand(2)]

    assert_whole(_report(CERTAIN["always"], draws))
