"""Outputs that are no tensor of the engine: None, results an operator left out, another device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ortmodule_py import ORTModule, last_run_report


class Apply(nn.Module):
    def __init__(self, function: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(4))
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x, self.w)


def _assert_same(got: Any, want: Any) -> None:
    assert type(got) is type(want)
    if isinstance(want, dict):
        assert list(got) == list(want)
        got, want = list(got.values()), list(want.values())
    if isinstance(want, (tuple, list)):
        assert len(got) == len(want)
        for a, b in zip(got, want, strict=True):
            _assert_same(a, b)
    elif isinstance(want, Tensor):
        assert got.device == want.device and got.requires_grad == want.requires_grad
        torch.testing.assert_close(got, want)
    else:
        assert got == want


def _compare(function: Callable[[Tensor, Tensor], Any]) -> dict[str, Any]:
    torch._dynamo.reset()
    model = ORTModule(Apply(function))
    for rows in (3, 5):
        x = torch.randn(rows, 4)
        _assert_same(model(x), model.module(x))
    return dict(last_run_report(model))


def _norm_backward(x: Tensor, w: Tensor) -> Any:
    mean, rstd = x.mean(1, keepdim=True), x.var(1, keepdim=True).rsqrt()
    backward = torch.ops.aten.native_layer_norm_backward.default
    return backward(x.detach(), x, [4], mean, rstd, None, None, [True, False, False]), x * w


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: (x * w, None),
        lambda x, w: (None, [x * w, None, {"a": None, "b": x}], None),
        lambda x, w: {"loss": (x * w).sum(), "n": x.shape[0], "what": "text", "none": None},
        _norm_backward,
    ],
)
def test_none(function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_VERIFY", "1")
    assert _compare(function)["compiled"]


def test_nothing_but_none() -> None:
    assert not _compare(lambda x, w: (None, None))["eager_pieces"]


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: (x.to("meta"), x * w),
        lambda x, w: ((x * w).to("meta").sum(), x),
        lambda x, w: (torch.zeros(3, device="meta"), x * w),
    ],
)
def test_another_device_runs_in_eager(function: Callable[..., Any]) -> None:
    pieces = _compare(function)["eager_pieces"]
    assert len(pieces) == 1 and "makes a tensor on meta" in pieces[0]


def test_the_same_device_is_compiled() -> None:
    assert _compare(lambda x, w: (x.to("cpu") * w.cpu()).to(x.device))["compiled"]


class Chained(nn.Module):
    """An output that another one is made of, and one that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.first(x).tanh()
        return self.second(h).sum(), h, self.first(x.detach() + h.detach())


def test_the_gradient_of_an_output_that_another_is_made_of_is_an_error() -> None:
    model = ORTModule(Chained())
    loss, h, _ = model(torch.ones(2, 4))
    h.retain_grad()
    with pytest.raises(
        RuntimeError, match=r"retain_grad.* output 1 .* output 0, .* is computed from it"
    ):
        loss.backward()
    loss, h, other = model(torch.ones(2, 4))
    h.retain_grad()
    (h * 3).sum().backward(retain_graph=True)
    torch.testing.assert_close(h.grad, torch.full((2, 4), 3.0))
    h.grad = None
    other.sum().backward()
    assert h.grad is None
