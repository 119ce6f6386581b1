"""Views whose old and new sizes change: one capture, and sizes that are quotients take no long capture."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.semantics import Calls, as_in_eager, assert_whole


def _steps(*shapes: tuple[int, ...]) -> Any:
    def step(model: Any) -> list[Any]:
        results = []
        for shape in shapes:
            x = torch.randn(shape, requires_grad=True)
            y = model(x)
            y.square().sum().backward()
            results += [y, y.stride(), x.grad]
        return results

    return step


def test_equal_sizes_are_no_capture_of_their_own() -> None:
    def turned(m: Any, x: Tensor) -> Tensor:
        batch, rows, columns = x.shape
        y = x.view(rows, columns, batch) * m.fc.bias.sum()
        return y.view(columns * rows, batch, 1) * x.view(columns, -1).sum()

    shapes = ((4, 6, 10), (8, 9, 7), (6, 6, 6), (12, 3, 3), (5, 15, 5), (2, 8, 4))
    assert_whole(as_in_eager(Calls(turned), _steps(*shapes)), captures=2)


def test_strides_of_views_of_what_has_gaps() -> None:
    def halves(m: Any, x: Tensor) -> Tensor:
        y = m.fc(x)[:, ::2]
        return y.view(y.shape[0], y.shape[1], 2, 2).unflatten(1, (2, -1)).transpose(0, 1)

    shapes = ((3, 8, 4), (5, 12, 4), (7, 20, 4))
    assert_whole(as_in_eager(Calls(halves), _steps(*shapes)), captures=2)


def _windows(m: Any, x: Tensor) -> Tensor:
    batch, rows, columns, channels = x.shape
    x = F.pad(m.fc(x), (0, 0, 0, (2 - columns % 2) % 2, 0, (2 - rows % 2) % 2))
    _, high, wide, _ = x.shape
    x = x.view(batch, high // 2, 2, wide // 2, 2, channels).transpose(2, 3).reshape(-1, 4, channels)
    for scale in range(12):
        x = x.roll(1, 1).tanh() * (scale + 2) / 8
    x = x.view(batch, high // 2, wide // 2, 2, 2, channels).transpose(2, 3)
    return x.reshape(batch, high, wide, channels)[:, :rows, :columns].contiguous()


def test_padded_windows() -> None:
    before = FakeTensorMode.cache_misses
    report = as_in_eager(Calls(_windows), _steps((2, 5, 7, 4), (3, 7, 9, 4), (2, 9, 5, 4)))
    assert_whole(report, captures=2)  # the second one with rows and columns as symbols
    # torch makes the result of each entry of its cache twice, which takes most of such a capture.
    assert FakeTensorMode.cache_misses - before < 170
