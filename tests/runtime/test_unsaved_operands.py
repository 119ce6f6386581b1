"""What gradients of gradients read that the first backward does not keep, or that was changed since."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ortmodule_py import ORTModule
from tests.runtime.test_second_derivatives import QUIET, Running, mlp


def test_an_operand_that_nothing_saved_and_that_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient of torch's `frac` reads nothing, so the dropout in front of it is gone."""

    class Fractions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 64, dtype=torch.float64)

        def forward(self, x: Tensor) -> Tensor:
            return F.dropout(self.layer(x).square(), 0.5, self.training).frac()

    monkeypatch.setenv("ORTMODULE_RNG", "torch")
    torch._dynamo.reset()
    torch.manual_seed(0)
    eager = Fractions()
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    results = []
    for model in (ORTModule(copy.deepcopy(eager), QUIET), eager):
        torch.manual_seed(1)
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        results.append(
            [slope, *torch.autograd.grad(slope.square().sum(), [x, *model.parameters()])]
        )
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("config", ["", "Mul+TopK+:1:-1"])
def test_an_argument_that_forward_has_overwritten(
    config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where `topk`, whose gradient reads its places, is computed again from a copy of it."""
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_CONFIG", config)

    class Overwritten(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            largest = (2 * x).topk(1, dim=-1).values
            x.detach().zero_()
            return largest

    torch._dynamo.reset()
    model = ORTModule(Overwritten(), QUIET)
    x = torch.randn(3, 4, requires_grad=True)
    y = model(x)
    (slope,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    torch.testing.assert_close(slope.sum(1, keepdim=True), 4 * y)
    (bend,) = torch.autograd.grad(slope.sum(), x)
    torch.testing.assert_close(bend.sum(1), torch.full((3,), 8.0))


def test_an_argument_that_backward_does_not_read_may_be_changed() -> None:
    torch._dynamo.reset()
    model = ORTModule(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)), QUIET)
    x = torch.randn(3, 4, requires_grad=True)
    y = model(x)
    with torch.no_grad():
        model.module[2].bias.add_(1)
    (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    slope.square().sum().backward()
    assert model.module[0].weight.grad is not None and model.module[2].bias.grad is None


def test_an_argument_that_only_the_second_pass_reads() -> None:
    """It is read if it is still there as it was; nothing has kept it."""

    class Rectified(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.relu() * 2

    torch._dynamo.reset()
    model = ORTModule(Rectified(), QUIET)
    x = torch.tensor([2.0, -1.0, 3.0], requires_grad=True)
    y = model(x)
    (slope,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    (bend,) = torch.autograd.grad(slope.sum(), x)
    assert bend.tolist() == [8.0, 0.0, 8.0]
    y = model(x * 1.0)
    with pytest.raises(RuntimeError, match="it was freed or changed in place since; keep it"):
        torch.autograd.grad(y.square().sum(), x, create_graph=True)


def test_a_buffer_that_was_changed_again() -> None:
    """Before the second pass reads it: nothing has kept it as it was."""
    torch._dynamo.reset()
    model = ORTModule(Running(), QUIET)
    x = torch.randn(5, 6, requires_grad=True)
    y = model(x)
    model(x)
    with pytest.raises(RuntimeError, match=r"argument mean of forward .* changed in place since"):
        torch.autograd.grad(y.square().sum(), x, create_graph=True)


def test_saved_values_outlive_the_backward_pass() -> None:
    """A pass that frees the graph of forward leaves that of its gradients."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    eager = mlp(nn.Tanh).double()
    x = torch.randn(5, 6, dtype=torch.float64, requires_grad=True)
    results = []
    for model in (ORTModule(copy.deepcopy(eager), QUIET), eager):
        weights = torch.ones(5, 1, dtype=torch.float64, requires_grad=True)
        y = model(x)
        (slope,) = torch.autograd.grad(y, x, weights, create_graph=True)
        y.sum().backward()
        del y
        spoiled = [torch.full((size,), torch.nan) for size in (80, 160, 320, 640)]
        del spoiled
        results.append(torch.autograd.grad(slope.square().sum(), weights)[0])
    torch.testing.assert_close(results[0], results[1])
