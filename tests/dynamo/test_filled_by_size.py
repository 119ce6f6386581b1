"""What torch fills by a number of elements, as `torch.linspace`: one capture for all numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.semantics import Calls, as_in_eager, assert_whole

LENGTHS = (10, 13, 16, 9, 21, 30)
FILLED: dict[str, Callable[[int], Tensor]] = {
    "linspace": lambda n: torch.linspace(-1, 1, n),
    "linspace to a size": lambda n: torch.linspace(0.5, n - 0.5, steps=n, dtype=torch.float64),
    "linspace of numpy": lambda n: torch.from_numpy(np.linspace(0, 1, n)),
    "linspace of numpy to a size": lambda n: torch.from_numpy(np.linspace(0.5, n, num=n)),
    "logspace": lambda n: torch.logspace(-1, 1, n),
    "hann": lambda n: torch.hann_window(n),
    "hann, symmetric": lambda n: torch.hann_window(n, periodic=False),
    "hamming": lambda n: torch.hamming_window(n, True, 0.6),
    "blackman": lambda n: torch.blackman_window(n, dtype=torch.float64),
    "bartlett": lambda n: torch.bartlett_window(n),
    "bartlett, symmetric": lambda n: torch.bartlett_window(n, False),
    "kaiser": lambda n: torch.kaiser_window(n, periodic=True, beta=8.0),
    "kaiser, symmetric": lambda n: torch.kaiser_window(n, False, dtype=torch.float64),
    "frequencies": lambda n: torch.fft.fftfreq(n, 0.5),
    "half of the frequencies": lambda n: torch.fft.rfftfreq(2 * n - 1),
    "upper triangle": lambda n: torch.triu_indices(n, n),
    "above the diagonal": lambda n: torch.triu_indices(n, n, 1),
    "lower triangle": lambda n: torch.tril_indices(n, n, device="cpu"),
    "below the diagonal": lambda n: torch.tril_indices(n, n, offset=-2),
}


@pytest.mark.parametrize("name", FILLED)
def test_a_tensor_filled_by_size(name: str) -> None:
    def weighted(m: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        filled = FILLED[name](len(x))
        return filled, m.fc(x).sum() * filled.sum()

    def step(model: Any) -> list[Any]:
        results = [model(torch.randn(n, 4)) for n in LENGTHS]
        sum(scaled for _, scaled in results).backward()
        return results

    assert_whole(as_in_eager(Calls(weighted), step), captures=1)


FILLED_BY_TORCH: dict[str, Callable[[int], Tensor]] = {
    "integers": lambda n: torch.linspace(0, 99, n, dtype=torch.int64),
    "a wide triangle": lambda n: torch.triu_indices(n, n + 1),
    "more than a triangle": lambda n: torch.tril_indices(n, n, 1),
}


@pytest.mark.parametrize("name", FILLED_BY_TORCH)
def test_a_tensor_that_has_no_formula(name: str) -> None:
    def weighted(m: Any, x: Tensor) -> Tensor:
        return m.fc(x).sum() * FILLED_BY_TORCH[name](len(x))

    as_in_eager(Calls(weighted), lambda model: [model(torch.ones(n, 4)) for n in LENGTHS[:3]])
