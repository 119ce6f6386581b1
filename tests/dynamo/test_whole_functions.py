"""Functions of torch that Dynamo hands to its graph whole: those that check data, draws without shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, distributions, nn
from torch.nn import functional

from ortmodule_py import ORTModule
from tests.semantics import QUIET, Calls, as_in_eager, assert_whole


def _positive(self: Any, x: Tensor) -> Tensor:
    return functional.softplus(self.fc(x)) + 0.1


def _likelihood(self: Any, x: Tensor) -> Tensor:
    return nn.GaussianNLLLoss(full=True)(self.fc(x), x, _positive(self, x))


def _likelihood_of_a_number(self: Any, x: Tensor) -> Tensor:
    return functional.gaussian_nll_loss(self.fc(x), x, 0.5, reduction="none")


def _dirichlet(self: Any, x: Tensor) -> Tensor:
    return distributions.Dirichlet(_positive(self, x)).rsample()


def _beta(self: Any, x: Tensor) -> Tensor:
    return distributions.Beta(_positive(self, x), _positive(self, -x)).rsample()


def _gamma(self: Any, x: Tensor) -> Tensor:
    return distributions.Gamma(_positive(self, x), _positive(self, -x)).rsample()


def _binomial(self: Any, x: Tensor) -> Tensor:
    counts = distributions.Binomial(10, torch.sigmoid(self.fc(x))).sample()
    return self.fc(x) * counts


def _labels(self: Any, x: Tensor) -> Tensor:
    labels = torch.tensor([3, 0, -1, 1]).expand(len(x), 4)
    return functional.multilabel_margin_loss(self.fc(x), labels)


def _margins(self: Any, x: Tensor) -> Tensor:
    return functional.multi_margin_loss(self.fc(x), torch.arange(len(x)) % 4)


def _steps(model: Any) -> list[Tensor]:
    results = []
    for rows in (4, 3, 6, 5):
        results.append(model(torch.linspace(-1, 1, 4 * rows).view(rows, 4)))
        results[-1].square().sum().backward()
    return results


LOSSES = (_likelihood, _likelihood_of_a_number, _labels, _margins)
DRAWS = (_dirichlet, _beta, _gamma, _binomial)


@pytest.mark.parametrize("function", LOSSES + DRAWS)
def test_is_captured(function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_RNG", "torch")
    assert_whole(as_in_eager(Calls(function), _steps))


@pytest.mark.parametrize("function", DRAWS)
def test_draws_are_not_repeated(
    function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Backward that recomputes reads the numbers that forward drew."""
    monkeypatch.setenv("ORTMODULE_RNG", "torch")
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_LEVEL", "2")
    as_in_eager(Calls(function), _steps)


def test_a_negative_variance_is_eagers_error() -> None:
    model = ORTModule(Calls(lambda self, x: functional.gaussian_nll_loss(self.fc(x), x, x)), QUIET)
    model(torch.ones(2, 4)).backward()
    with pytest.raises(ValueError, match="var has negative"):
        model(-torch.ones(2, 4))


def _pooled(self: Any, x: Tensor) -> Tensor:
    masks = functional.max_pool1d((x > 0).float().mT, 2, 1, padding=1)
    return nn.MaxPool1d(2)(self.fc(x).mT) * masks.mean()


def _pooled_places(self: Any, x: Tensor) -> Tensor:
    y, places = functional.max_pool1d(self.fc(x).mT, 3, 1, return_indices=True)
    return y * places


@pytest.mark.parametrize("function", [_pooled, _pooled_places])
def test_pools_of_sequences_of_any_length(function: Callable[..., Any]) -> None:
    def steps(model: Any) -> list[Tensor]:
        results = []
        for length in (6, 5, 8, 9, 7):
            results.append(model(torch.linspace(-1, 1, 8 * length).view(2, length, 4)))
            results[-1].square().sum().backward()
        return results

    assert_whole(as_in_eager(Calls(function), steps), captures=2)
