"""Draws with `generator=None`, for batches of other sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.semantics import Calls, as_in_eager, assert_compiled

DRAWS: dict[str, Callable[[Tensor], Tensor]] = {
    "randn": lambda x: torch.randn(
        x.shape, generator=None, device=x.device, dtype=x.dtype, layout=torch.strided
    ),
    "rand": lambda x: torch.rand(len(x), 4, generator=None),
    "randint": lambda x: torch.randint(0, 3, x.shape, generator=None),
    "randperm": lambda x: x[torch.randperm(len(x), generator=None)],
}


@pytest.mark.parametrize("draw", DRAWS)
def test_one_capture_for_all_sizes(draw: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_RNG", "torch")

    def forward(self: Any, x: Tensor) -> Tensor:
        y: Tensor = self.fc(x) + DRAWS[draw](x)
        return y

    def step(model: Any) -> list[Tensor]:
        found = []
        for rows in (3, 4, 5, 3):
            y = model(torch.linspace(-1, 1, rows * 4).view(rows, 4))
            y.square().sum().backward()
            found.append(y)
        return found

    report = as_in_eager(Calls(forward), step)
    assert_compiled(report, captures=2)
    assert not report["graph_breaks"]


def test_a_generator_is_used() -> None:
    def forward(self: Any, x: Tensor, generator: torch.Generator) -> Tensor:
        y: Tensor = self.fc(x) * torch.rand(x.shape, generator=generator)
        return y

    def step(model: Any) -> list[Tensor]:
        generator = torch.Generator().manual_seed(3)
        return [model(torch.ones(rows, 4), generator) for rows in (3, 4, 3)]

    as_in_eager(Calls(forward), step)
