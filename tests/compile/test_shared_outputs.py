"""Outputs of a piece that share memory: what is changed behind a graph break is seen through all of them."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from ortmodule_py import ORTModule
from tests.semantics import QUIET, Calls

Piece = Callable[[Tensor], tuple[Tensor, ...]]


def _of_a_result(y: Tensor) -> tuple[Tensor, ...]:
    return y, y[:, 1:3]


def _of_one_that_is_not_returned(y: Tensor) -> tuple[Tensor, ...]:
    y = y * 2
    return y[1:], y.t()


def _reshaped(y: Tensor) -> tuple[Tensor, ...]:
    return y.view(-1), y.view(2, -1)


def _the_same(y: Tensor) -> tuple[Tensor, ...]:
    z = y.mul_(2)
    return z, y


def _without_gradient(y: Tensor) -> tuple[Tensor, ...]:
    return y, y.detach()[0]


def _with_and_without_gradient(y: Tensor) -> tuple[Tensor, ...]:
    y = y * 2
    return y.view(-1).view(y.shape), y.detach()


@pytest.mark.parametrize(
    "piece",
    [
        *(_of_a_result, _of_one_that_is_not_returned, _reshaped, _the_same),
        *(_without_gradient, _with_and_without_gradient),
    ],
)
@pytest.mark.parametrize("grad", [True, False])
def test_a_change_behind_a_break_is_seen_through_all_views(piece: Piece, grad: bool) -> None:
    def forward(self: nn.Module, x: Tensor) -> Tensor:
        first, second = piece(self.fc(x) * 1)
        torch._dynamo.graph_break()
        with torch.set_grad_enabled(grad and second.requires_grad):
            second.mul_(0.5)
        return first.sin() + second.sum()

    _compare(forward)


def test_a_view_of_an_argument_is_one() -> None:
    def forward(self: nn.Module, x: Tensor) -> Tensor:
        y = self.fc(x)
        torch._dynamo.graph_break()
        part = y[1:]
        torch._dynamo.graph_break()
        part.mul_(3)
        return y.sin()

    _compare(forward)


def test_values_inside_of_vmap_are_no_views() -> None:
    def forward(self: nn.Module, x: Tensor) -> Tensor:
        y = self.fc(x)
        z = torch.vmap(lambda row: (row * 2)[1:].sum())(y)
        torch._dynamo.graph_break()
        return z[:, None] + y

    _compare(forward)


@pytest.mark.parametrize("shape", [(1, 4), (3, 1), (3, 4)])
def test_the_gradient_of_a_view_of_an_expanded_argument(shape: tuple[int, int]) -> None:
    """Each element has a gradient of its own, though they share memory."""

    def forward(self: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.fc(x), x[..., :2]

    torch.manual_seed(1)
    eager = Calls(forward)
    ours = ORTModule(copy.deepcopy(eager), QUIET)
    base, weights = torch.randn(shape), torch.randn(3, 2)
    results = []
    for model in (eager, ours):
        x = base.expand(3, 4).detach().requires_grad_()
        y, part = model(x)
        (y.square().sum() + (part * weights).sum()).backward()
        results.append([part, x.grad])
    torch.testing.assert_close(results[1], results[0])


def _compare(forward: Callable[..., Tensor]) -> None:
    torch.manual_seed(1)
    eager = Calls(forward)
    ours = ORTModule(copy.deepcopy(eager), QUIET)
    for rows in (4, 6, 8):
        x = torch.randn(rows, 4)
        results = []
        for model in (eager, ours):
            model.zero_grad()
            y = model(x.clone())
            y.square().sum().backward()
            results.append([y, *(p.grad for p in model.parameters())])
        torch.testing.assert_close(results[1], results[0])
