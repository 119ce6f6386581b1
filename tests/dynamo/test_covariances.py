"""`torch.cov`, `torch.corrcoef` and `torch.combinations`: one piece, for all sizes where their form allows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.semantics import Calls, as_in_eager, assert_whole

Use = Callable[[Tensor], Tensor]

COVARIANCES: dict[str, Use] = {
    "cov": torch.cov,
    "cov without correction": lambda y: y.mT.cov(correction=0),
    "corrcoef": torch.corrcoef,
    "corrcoef of a row": lambda y: y[0].corrcoef(),
    "cov of complex numbers": lambda y: torch.cov(torch.complex(y, y.sin())).abs(),
    "corrcoef of complex numbers": lambda y: torch.complex(y, y.sin()).corrcoef().abs(),
    "cov of integers": lambda y: torch.cov((y.detach() * 4).long()) * y.sum(),
    "pairs": lambda y: torch.combinations(y[:, 0]),
    "pairs with replacement": lambda y: torch.combinations(y[:, 0], with_replacement=True),
}


def _steps(model: Any, *rows: int) -> list[Any]:
    results = []
    for count in rows:
        result = model(torch.randn(count, 4))
        result.square().sum().backward()
        results += [result, result.stride()]
    return results


@pytest.mark.parametrize("name", COVARIANCES)
def test_any_number_of_rows(name: str) -> None:
    use = COVARIANCES[name]
    model = Calls(lambda m, x: use(m.fc(x)))
    assert_whole(as_in_eager(model, lambda m: _steps(m, 5, 3, 8)))


@pytest.mark.parametrize("r", [1, 3])
def test_combinations_of_a_fixed_number(r: int) -> None:
    model = Calls(lambda m, x: torch.combinations(m.fc(x)[0], r, r == 3))
    assert_whole(as_in_eager(model, lambda m: _steps(m, 5, 3, 8)))


def test_weights_are_left_to_torch() -> None:
    weights = torch.tensor([1, 2, 1, 3])
    model = Calls(lambda m, x: torch.cov(m.fc(x), fweights=weights))
    as_in_eager(model, lambda m: _steps(m, 5, 3))


def test_too_few_observations() -> None:
    """Eager divides by zero."""
    model = Calls(lambda m, x: torch.cov(m.fc(x)[:, :1]))
    assert_whole(as_in_eager(model, lambda m: [m(torch.randn(3, 4))]))
