"""Ranges over sizes whose step is written as a float, as in XLNet's relative positions."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from ortmodule_py import ORTModule, last_run_report

RANGES: dict[str, Callable[[int], Tensor]] = {
    "integers": lambda n: torch.arange(n, -n, -1.0, dtype=torch.int64),
    "floats": lambda n: torch.arange(n, -n, -1.0),
    "named": lambda n: torch.arange(start=0.0, end=2 * n, step=2.0),
    "fractional": lambda n: torch.arange(0, 3, 0.5),
}


class Scaled(nn.Module):
    """A parameter for every number of a range."""

    def __init__(self, numbers: Callable[[int], Tensor]) -> None:
        super().__init__()
        self.numbers = numbers
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The sum to differentiate, and the range."""
        numbers = self.numbers(tokens.shape[1])
        return (numbers.to(self.weight.dtype)[:, None] * self.weight).sum(), numbers


@pytest.mark.parametrize("kind", RANGES)
def test_range_of_floats(kind: str) -> None:
    torch._dynamo.reset()
    eager = Scaled(RANGES[kind])
    ours = ORTModule(eager)
    for length in (5, 3, 8):
        tokens = torch.zeros(2, length, dtype=torch.int64)
        (want, expected), (got, numbers) = eager(tokens), ours(tokens)
        assert numbers.dtype == expected.dtype
        assert torch.equal(numbers, expected)
        assert torch.equal(got, want)
    report = last_run_report(ours)
    assert report["compiled"]
    assert report["captures"] == 1
