"""`torch.bincount`: captured where the number of counts is known before the call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.semantics import Calls, as_in_eager, assert_whole


def _batches(model: Any) -> list[Any]:
    results = []
    for i, rows in enumerate((6, 9, 5, 7)):
        labels = torch.randint(0, 3 + i % 3, (rows,))
        results.append(model(torch.randn(rows, 4), labels))
        results[-1][0].square().mean().backward()
    return results


CAPTURED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "the nearest code": lambda y, labels: torch.bincount(y.argmin(1), minlength=4),
    "more than all": lambda y, labels: y.argmax(dim=-1).view(-1).bincount(minlength=6),
    "experts": lambda y, labels: torch.bincount(y.topk(2, dim=-1)[1].flatten(), minlength=4),
    "routed": lambda y, labels: torch.bincount(y.max(1).indices, minlength=y.size(1)),
    "rows": lambda y, labels: torch.bincount(y.argmax(0), minlength=len(y)),
    "weighted": lambda y, labels: torch.bincount(y.argmax(1), y.sum(1).detach(), 4),
    "weighted by doubles": lambda y, labels: torch.bincount(
        y.argmax(1), weights=y.sum(1).double().detach(), minlength=4
    ),
    "drawn": lambda y, labels: torch.bincount(torch.ones(4).multinomial(3), minlength=4),
    "labels": lambda y, labels: torch.bincount(labels),
    "labels with a least number": lambda y, labels: labels.bincount(minlength=4),
}


def _with(count: Callable[[Tensor, Tensor], Tensor]) -> Calls:
    def forward(m: Any, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        y = m.fc(x)
        counts = count(y, labels)
        return y * counts.float().mean(), counts

    return Calls(forward)


@pytest.mark.parametrize("name", CAPTURED)
def test_counts(name: str) -> None:
    assert_whole(as_in_eager(_with(CAPTURED[name]), _batches), captures=2)


UNKNOWN: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "no least number": lambda y, labels: torch.bincount(y.argmin(1)),
    "a number that is exceeded": lambda y, labels: torch.bincount(y.argmin(1), minlength=2),
    "values that are computed": lambda y, labels: torch.bincount(
        (y * 3).abs().long()[:, 0], minlength=9
    ),
    "indices that are changed": lambda y, labels: torch.bincount(y.argmin(1).add_(7), minlength=4),
    "of all elements": lambda y, labels: torch.bincount(y.argmax().view(1), minlength=4),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_counts_that_break_the_graph(name: str) -> None:
    as_in_eager(_with(UNKNOWN[name]), _batches)
