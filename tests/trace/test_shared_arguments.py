"""Arguments that are views of one storage, one of them changed in place."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from ortmodule_py import ORTModule, last_run_report


class ChangesFirst(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        before = y * 2
        x.add_(1.0)
        return (before.sum() + (y * 3).sum()) * self.w


class ChangesBuffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(3, 4))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        self.seen.add_(x)
        return y * 2


Share = Callable[[Tensor], tuple[Tensor, Tensor]]

SHARED: list[Share] = [
    lambda x: (x, x.view(4, 3)),
    lambda x: (x[:2], x[1:]),
    lambda x: (x.t(), x[0]),
    lambda x: (x[:, 1], x),
]
APART: list[Share] = [
    lambda x: (x[:1], x[1:]),
    lambda x: (x, x.clone()),
]


def _run(module: nn.Module, arguments: tuple[Tensor, Tensor]) -> list[Tensor]:
    out = module(*arguments)
    out.backward()
    return [out.detach(), *(a.clone() for a in arguments), *(p.grad for p in module.parameters())]


def _check(share: Share, times: int) -> ORTModule:
    model = ORTModule(ChangesFirst())
    for _ in range(times):
        base = torch.randn(3, 4)
        model.zero_grad()
        want = _run(model.module, share(base.clone()))
        model.zero_grad()
        got = _run(model, share(base.clone()))
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b)
    return model


@pytest.mark.parametrize("share", SHARED)
def test_views_of_one_storage_run_in_eager(share: Share) -> None:
    torch._dynamo.reset()
    report = last_run_report(_check(share, 2))
    assert len(report["eager_pieces"]) == 1 and "shares memory" in report["eager_pieces"][0]


@pytest.mark.parametrize("share", APART)
def test_memory_apart_runs_in_the_engine(share: Share) -> None:
    torch._dynamo.reset()
    assert last_run_report(_check(share, 2))["compiled"]


def test_the_same_tensor_twice_is_a_capture_of_its_own() -> None:
    torch._dynamo.reset()
    model = _check(lambda x: (x, x.clone()), 1)
    base = torch.randn(3, 4)
    x = base.clone()
    want = model.module(x, x)
    torch.testing.assert_close(model(base, base), want)
    assert last_run_report(model)["compiled"]


def test_a_buffer_may_move_and_may_be_an_argument() -> None:
    torch._dynamo.reset()
    model = ORTModule(ChangesBuffer())
    x = torch.randn(3, 4)
    torch.testing.assert_close(model(x, x), x * 2)
    model.seen = x.view(3, 4)
    torch.testing.assert_close(model(torch.ones(3, 4), x), 2 * x)
    model.seen = torch.zeros(3, 4)
    torch.testing.assert_close(model(x, model.seen.view(3, 4)), 2 * x)
