"""Pools whose window, or whose number of results, follows from a size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.semantics import Calls, as_in_eager, assert_whole

POOLS: dict[str, Callable[[Tensor], Tensor]] = {
    "max": lambda x: F.max_pool1d(x, x.size(2)),
    "max of two": lambda x: F.max_pool2d(x, x.size()[1:]),
    "max of rows": lambda x: F.max_pool2d(x, (1, x.size(2)), stride=(1, 1)),
    "mean": lambda x: F.avg_pool1d(x, kernel_size=x.size(2), count_include_pad=False),
    "mean of two": lambda x: F.avg_pool2d(x[None], x.size()[1:], x.size()[1:]),
    "mean of three": lambda x: F.avg_pool3d(x[None], (x.size(0), *x.size()[1:])),
    "adaptive": lambda x: F.adaptive_avg_pool1d(x, x.size(2) // 2),
}


def _steps(model: Any) -> list[Tensor]:
    results = []
    for length in (5, 6, 8, 11, 13):
        # Few different numbers, so that there are ties.
        y = model(torch.randint(0, 3, (2, length, 4)).float())
        y.square().sum().backward()
        results.append(y)
    return results


@pytest.mark.parametrize("name", POOLS)
def test_other_sizes_are_no_captures(name: str) -> None:
    def pooled(self: Any, x: Tensor) -> Tensor:
        return POOLS[name](self.fc(x).round().transpose(1, 2) + x.transpose(1, 2)).flatten()

    assert_whole(as_in_eager(Calls(pooled), _steps), captures=2)


def test_windows_that_are_no_whole_dimension_stay_pools() -> None:
    def pooled(self: Any, x: Tensor) -> Tensor:
        x = self.fc(x).transpose(1, 2)
        y = F.max_pool1d(x, x.size(2), padding=x.size(2) // 2) + F.max_pool1d(x, 2).sum()
        return y.flatten()

    assert_whole(as_in_eager(Calls(pooled), _steps), captures=5)
