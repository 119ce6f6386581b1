"""Conditions on data: the piece stays in the engine, and what eager refuses is refused."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ortmodule_py import ORTModule, last_run_report


class OneHot(nn.Module):
    """`one_hot` checks its argument when it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(5, 4))

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        rows = F.one_hot(ids, 5)
        return rows.float() @ self.w, rows


class Asserting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        assert (x < 3).all(), "too large"
        y = self.fc(x)
        assert (y.detach() < 1e9).all()
        return y


def test_one_hot_is_compiled() -> None:
    model = ORTModule(OneHot())
    ids = torch.tensor([1, 2, 4])
    for got, want in zip(model(ids), model.module(ids), strict=True):
        assert got.dtype == want.dtype
        torch.testing.assert_close(got, want)
    model(ids)[0].sum().backward()
    assert model.w.grad is not None and model.w.grad[0].eq(0).all() and model.w.grad[1].eq(1).all()
    assert last_run_report(model)["compiled"]
    if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13):  # before, it checks nothing
        with pytest.raises(RuntimeError, match="smaller than num_classes"):
            model(torch.tensor([1, 5]))


def test_assertions_of_the_user() -> None:
    model = ORTModule(Asserting())
    x = torch.zeros(3, 4)
    torch.testing.assert_close(model(x), model.module(x))
    assert last_run_report(model)["compiled"]
    with pytest.raises((RuntimeError, AssertionError), match="too large"):
        model(x + 3)
    torch.testing.assert_close(model(x), model.module(x))
