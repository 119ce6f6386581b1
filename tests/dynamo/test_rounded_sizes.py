"""Sizes that follow from others by rounding: one capture for all."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ortmodule_py.dynamo.patches.table import running_torch
from tests.semantics import Calls, as_in_eager, assert_whole

LENGTHS = (10, 13, 16, 9, 21, 30)


def _lengths(model: Any, lengths: Sequence[int] = LENGTHS) -> list[Any]:
    results: list[Any] = []
    for n in lengths:
        results.append(model(torch.randn(n, 4)))
        results[-1].square().mean().backward()
    return results


ROUNDED: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "a part": lambda m, x: m.fc(x)[: int(0.3 * len(x))] * 2,
    "a part of two rows at least": lambda m, x: m.fc(x)[: max(2, int(len(x) * 0.15))] * 2,
    "a part of a part": lambda m, x: m.fc(x)[: int(len(x) * 0.7 * 0.7)] * 2,
    "the nearest integer": lambda m, x: m.fc(x).topk(round(len(x) * 0.3), 0)[0],
    "a root": lambda m, x: m.fc(x)[: math.floor(len(x) ** 0.5)] * 2,
    "a root of integers": lambda m, x: m.fc(x)[: math.isqrt(x.numel())] * 2,
    "a square": lambda m, x: m.fc(x)[: int(math.sqrt(len(x))) ** 2].view(int(len(x) ** 0.5), -1),
    "a logarithm": lambda m, x: m.fc(x).topk(math.ceil(math.log(len(x))), 0)[0],
    "a logarithm to 10": lambda m, x: m.fc(x)[: 2 + int(math.log10(len(x) * 100))] * 2,
    "one of numpy": lambda m, x: m.fc(x).topk(int(3 * np.ceil(np.log(len(x)))), 0)[0],
    "a power": lambda m, x: _padded(m.fc(x), 2 ** math.ceil(math.log2(len(x)))),
    "bits": lambda m, x: _padded(m.fc(x), 1 << (len(x) - 1).bit_length()),
    "a common multiple": lambda m, x: _padded(m.fc(x), math.lcm(len(x), 4)),
    "the integer itself": lambda m, x: m.fc(x)[: int(np.maximum(np.ceil(len(x)) * 0.6, 1))] * 2,
    "of two sizes": lambda m, x: m.fc(x)[: int((len(x) * x.shape[1]) ** 0.4)] * 2,
    "in arithmetic": lambda m, x: (
        m.fc(x) * int(len(x) * 0.7) / np.mean(x.shape) + np.round(len(x) / 3)
    ),
    "extrema": lambda m, x: m.fc(x)[: np.max(x.shape) - np.min(x.shape)] * int(np.sum(x.shape)),
}


def _padded(x: Tensor, rows: int) -> Tensor:
    return torch.nn.functional.pad(x, (0, 0, 0, rows - len(x))) * 2


@pytest.mark.parametrize("name", ROUNDED)
def test_a_rounded_size(name: str) -> None:
    assert_whole(as_in_eager(Calls(ROUNDED[name]), _lengths), captures=1)


def test_a_logarithm_of_a_power_of_ten_is_exact() -> None:
    def first(m: Any, x: Tensor) -> Tensor:
        return m.fc(x)[: int(math.log10(len(x)))] * 2

    as_in_eager(Calls(first), lambda model: _lengths(model, (1000, 999, 100)))


def test_loops_are_captured_for_each_count() -> None:
    def doubled(m: Any, x: Tensor) -> Tensor:
        y = m.fc(x)
        for _ in range(int(math.log2(len(x)))):
            y = y * 2
        return y

    assert_whole(as_in_eager(Calls(doubled), _lengths), captures=2)


def test_a_rounded_size_behind_a_graph_break() -> None:
    def parted(m: Any, x: Tensor) -> Tensor:
        n = int(0.3 * len(x))
        y = m.fc(x)[:n] * 2
        torch._dynamo.graph_break()
        return y * n + x[: 2 + round(0.4 * n)].sum()

    report = as_in_eager(Calls(parted), _lengths)
    assert not report["eager_pieces"]
    assert report["captures"] <= 3 or running_torch() < (2, 13)
