"""Pieces between graph breaks: what one hands to the next keeps its changing sizes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .semantics import Calls, as_in_eager, assert_compiled


def _broken_twice(self: Any, x: Tensor, ids: Tensor) -> Tensor:
    h = self.fc(x) + ids[:, :, None]
    torch._dynamo.graph_break()
    h = self.second(h) * (ids != 0)[:, :, None]
    torch._dynamo.graph_break()
    return self.third(h).sum(1)


def test_one_capture_per_piece_over_changing_batches() -> None:
    module = Calls(_broken_twice, second=nn.Linear(4, 4), third=nn.Linear(4, 2))

    def step(sizes: list[tuple[int, int]]) -> Any:
        def run(model: Any) -> list[Tensor]:
            found = []
            for batch, length in sizes:
                y = model(torch.randn(batch, length, 4), torch.randint(0, 5, (batch, length)))
                y.square().sum().backward()
                found.append(y)
            return found

        return run

    report = as_in_eager(module, step([(3, 5), (4, 5), (7, 5), (2, 5)]))
    assert_compiled(report, captures=3)
    assert len(report["graph_breaks"]) == 2
    # The second size of a float tensor is found to change at its second value.
    report = as_in_eager(module, step([(3, 5), (4, 6), (7, 9), (2, 3), (5, 8)]))
    assert_compiled(report, captures=6)
