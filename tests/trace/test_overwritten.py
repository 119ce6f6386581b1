"""Values that are overwritten in place: the result still requires a gradient, the old value gets zeros."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ortmodule_py import ORTModule, last_run_report


def _fill(v: Tensor, w: Tensor) -> None:
    v.fill_(0.5)


def _fill_with_tensor(v: Tensor, w: Tensor) -> None:
    v.fill_(w.sum())


def _zero(v: Tensor, w: Tensor) -> None:
    v.zero_()


def _copy_constant(v: Tensor, w: Tensor) -> None:
    v.copy_(torch.ones(3, 4))


def _copy(v: Tensor, w: Tensor) -> None:
    v.copy_(w)


def _fill_view(v: Tensor, w: Tensor) -> None:
    v.view(-1).fill_(2.0)


def _copy_to_transposed(v: Tensor, w: Tensor) -> None:
    v.t().copy_(torch.ones(4, 3))


def _fill_all_by_index(v: Tensor, w: Tensor) -> None:
    v[:].fill_(2.0)


def _fill_parts(v: Tensor, w: Tensor) -> None:
    v[0] = 1.0
    v[:, 1].fill_(2.0)
    v[:, 2] = w[:, 0]


class _Overwriting(nn.Module):
    def __init__(self, change: Callable[[Tensor, Tensor], None]) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(3, 4))
        self.change = change

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        v = x * 1.5
        self.change(v, self.w)
        return v, v * 2


def _step(module: nn.Module, x: Tensor) -> list[Any]:
    outputs = module(x)
    torch.autograd.backward([out.square().sum() for out in outputs])
    return [*outputs, x.grad, *(p.grad for p in module.parameters())]


@pytest.mark.parametrize(
    "change",
    [
        _fill, _fill_with_tensor, _zero, _copy_constant, _copy, _fill_view, _copy_to_transposed,
        _fill_all_by_index, _fill_parts,
    ],
)  # fmt: skip
def test_as_in_eager(change: Callable[[Tensor, Tensor], None]) -> None:
    torch._dynamo.reset()
    module = _Overwriting(change)
    x = torch.randn(3, 4)
    theirs = _step(module, x.clone().requires_grad_())
    module.zero_grad()
    model = ORTModule(module)
    mine = _step(model, x.clone().requires_grad_())
    assert last_run_report(model)["compiled"]
    for a, b in zip(mine, theirs, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b)


class ChangesAnotherName(nn.Module):
    """`type_as` of the same type is the tensor itself."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 1.5
        same = y.type_as(x)
        same.relu_()
        other = y.type_as(x.double())
        other.add_(1)
        return y * 2, other


@pytest.mark.parametrize("rows", [1, 3, 4])
def test_type_as_is_the_tensor_itself(rows: int) -> None:
    x = torch.linspace(-1, 1, 2 * rows).reshape(rows, 2)
    for ours, eager in zip(
        ORTModule(ChangesAnotherName())(x), ChangesAnotherName()(x), strict=True
    ):
        torch.testing.assert_close(ours, eager)
