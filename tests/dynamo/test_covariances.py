"""`torch.cov`, `torch.corrcoef` and `torch.combinations`: one piece, for all sizes where their form allows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ortmodule_py import ORTModule
from tests.semantics import QUIET, Calls, as_in_eager, assert_whole

Use = Callable[[Tensor], Tensor]

COUNTS = torch.tensor([1, 2, 0, 3])
COVARIANCES: dict[str, Use] = {
    "cov": torch.cov,
    "cov without correction": lambda y: y.mT.cov(correction=0),
    "cov with counts": lambda y: torch.cov(y, fweights=COUNTS),
    "cov with weights": lambda y: torch.cov(y, aweights=y[0].abs(), fweights=COUNTS, correction=2),
    "cov with weights alone": lambda y: y.cov(aweights=y[0].square(), correction=0),
    "cov of few with counts": lambda y: (
        torch.cov(y, correction=9, fweights=COUNTS).isinf() * y.sum()
    ),
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


@pytest.mark.parametrize("count", [-1, 0])
def test_weights_that_torch_refuses(count: int) -> None:
    model = Calls(lambda m, x: torch.cov(m.fc(x), fweights=COUNTS * count))
    for module in (model, ORTModule(model, QUIET)):
        with pytest.raises(RuntimeError, match="negative" if count else "sum to zero"):
            module(torch.randn(5, 4))


def test_too_few_observations() -> None:
    """Eager divides by zero."""
    model = Calls(lambda m, x: torch.cov(m.fc(x)[:, :1]))
    assert_whole(as_in_eager(model, lambda m: [m(torch.randn(3, 4))]))
