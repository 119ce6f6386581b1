"""`torch.block_diag` of tensors whose sizes change: one capture."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.semantics import Calls, as_in_eager, assert_whole


def _steps(model: Any) -> list[Any]:
    results = []
    for rows in (5, 3, 8, 6):
        result = model(torch.randn(rows, 4))
        result.square().sum().backward()
        results += [result, result.stride()]
    return results


def test_blocks_of_each_kind() -> None:
    def blocks(m: Any, x: Tensor) -> Tensor:
        y = m.fc(x)
        return torch.block_diag(y, y.sum(), y[0], y.t(), y[:2])

    assert_whole(as_in_eager(Calls(blocks), _steps))


def test_blocks_of_several_types() -> None:
    def blocks(m: Any, x: Tensor) -> Tensor:
        return torch.block_diag(m.fc(x), torch.ones(2, 2, dtype=torch.float64))

    assert_whole(as_in_eager(Calls(blocks), _steps), captures=4)


def test_equal_blocks() -> None:
    def weights(m: Any, x: Tensor) -> Tensor:
        return m.fc(x) @ torch.block_diag(*m.fc.weight.chunk(2)).sum(1)[:4].diag()

    assert_whole(as_in_eager(Calls(weights), _steps))
