"""Tensors of one integer where torch takes a size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.semantics import Calls, as_in_eager, assert_whole

USES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "arange": lambda x, n: x[:, :n] * (torch.arange(n) < 3)[:, None],
    "zeros": lambda x, n: x[:, :n] + torch.zeros((2, n, 4)),
    "full": lambda x, n: x[:, :n] + torch.full((2, n, 4), 0.5),
    "eye": lambda x, n: torch.eye(n) @ x[:, :n],
    "pad": lambda x, n: F.pad(x, (0, 0, n, 1)),
    "expand": lambda x, n: x[:, :1].expand(-1, n, -1),
    "repeat": lambda x, n: x[:, :1].repeat(1, n, 1),
    "reshape": lambda x, n: x[:, :n].reshape(2, n * 4),
    "new_zeros": lambda x, n: x[:, :n] + x.new_zeros(2, n, 1),
}


def _report(function: Callable[..., Any], lengths: tuple[int, ...]) -> dict[str, Any]:
    def step(model: Any) -> list[Tensor]:
        results = []
        for length in lengths:
            y = model(torch.randn(2, 9 + length, 4), torch.tensor([length, 2]))
            y.square().sum().backward()
            results.append(y)
        return results

    return as_in_eager(Calls(function), step)


@pytest.mark.parametrize("name", USES)
def test_a_number_that_follows_from_an_argument(name: str) -> None:
    def used(self: Any, x: Tensor, lengths: Tensor) -> Tensor:
        return USES[name](self.fc(x), lengths.max())

    assert_whole(_report(used, (4, 5, 7, 9, 6, 3)), captures=2)


def test_the_rounds_of_a_loop() -> None:
    def summed(self: Any, x: Tensor, lengths: Tensor) -> Tensor:
        y = self.fc(x)
        total = y[:, 0]
        for t in range(1, lengths.max()):
            total = total.tanh() + y[:, t]
        return total

    assert_whole(_report(summed, (4, 5, 4, 5)), captures=3)


def test_a_number_that_nothing_tells_breaks_the_graph() -> None:
    def used(self: Any, x: Tensor, lengths: Tensor) -> Tensor:
        n = self.fc(x).argmax() % 3 + 1
        return x[:, :1].expand(-1, n, -1) + self.fc(x[:, :1])

    report = _report(used, (4, 5))
    assert len(report["graph_breaks"]) == 1
