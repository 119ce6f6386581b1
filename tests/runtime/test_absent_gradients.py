"""Backward through outputs that no parameter's gradient flows through."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from ortmodule_py import ORTModule


class Rounding(nn.Module):
    """The gradient of `round` is a constant zero."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.linspace(-2, 2, 12).reshape(3, 4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * self.w
        return y * 2, (y * 3).round()


@pytest.mark.parametrize("retain", [False, True])
def test_zeros_where_eager_gives_zeros(retain: bool) -> None:
    module = Rounding()
    eager = copy.deepcopy(module)
    model = ORTModule(module)
    for runner in (model, eager):
        for _ in range(2):
            x = torch.arange(12.0).reshape(3, 4).requires_grad_()
            runner(x)[1].sum().backward(retain_graph=retain)
            assert x.grad is not None and torch.equal(x.grad, torch.zeros(3, 4))
    assert module.w.grad is not None and torch.equal(module.w.grad, torch.zeros(3, 4))
    runner_grad = [p.grad for p in eager.parameters()]
    assert torch.equal(module.w.grad, runner_grad[0])


class Overwriting(nn.Module):
    """The gradient of what `fill_` overwrites has a traced body of its own: zeros."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 3
        doubled = y * 2
        y.fill_(0.5)
        return doubled, y.abs()


@pytest.mark.parametrize("output", [0, 1])
def test_zeros_of_what_was_overwritten(output: int) -> None:
    results = []
    for runner in (ORTModule(Overwriting()), Overwriting()):
        x = torch.arange(12.0).reshape(3, 4).requires_grad_()
        runner(x)[output].sum().backward()
        assert x.grad is not None
        results.append(x.grad)
    assert torch.equal(*results)


class OverwritesAll(nn.Module):
    """The part that is overwritten lacks a dim of size 1 and still is everything."""

    def forward(self, x: Tensor) -> Tensor:
        y = x.clone()
        y[..., 0] = 0.25
        return y.sin()


def test_zeros_where_a_part_is_the_whole() -> None:
    for runner in (ORTModule(OverwritesAll()), OverwritesAll()):
        x = torch.ones(3, 5, 1, requires_grad=True)
        runner(x).sum().backward()
        assert x.grad is not None and torch.equal(x.grad, torch.zeros(3, 5, 1))


def test_zeros_of_a_step_function_where_the_gradient_is_not_finite() -> None:
    results = []
    for runner in (ORTModule(Rounding()), Rounding()):
        x = torch.arange(12.0).reshape(3, 4).requires_grad_()
        runner(x)[1].backward(torch.full((3, 4), float("nan")))
        results.append(x.grad)
    torch.testing.assert_close(*results, equal_nan=True)


def test_the_other_output_still_works() -> None:
    module = Rounding()
    eager = copy.deepcopy(module)
    model = ORTModule(module)
    x = torch.arange(12.0).reshape(3, 4)
    for runner in (model, eager):
        runner(x)[0].sum().backward()
        sum(out.sum() for out in runner(x)).backward()
    assert torch.equal(module.w.grad, eager.w.grad)


class Counting(nn.Module):
    """Backward needs the buffer as it was before forward changed it."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.full((4,), 2.0))
        self.w = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.w * self.scale.clone()
        self.scale += 1.0
        return (y * x).sum(), (y * y).sum()


@pytest.mark.parametrize("output", [0, 1])
@pytest.mark.parametrize("retain", [False, True])
def test_a_changed_buffer_keeps_its_old_content_for_backward(output: int, retain: bool) -> None:
    module = Counting()
    eager = copy.deepcopy(module)
    model = ORTModule(module)
    for runner in (model, eager):
        for _ in range(2):
            runner(torch.arange(4.0))[output].backward(retain_graph=retain)
    assert torch.equal(module.w.grad, eager.w.grad)
    assert torch.equal(module.scale, eager.scale)


class ChangesItsArgument(nn.Module):
    """Backward needs a view of the argument as it was."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.linspace(-1, 1, 12).reshape(3, 4))

    def forward(self, x: Tensor) -> Tensor:
        y = self.w * x.t().contiguous()
        x.masked_fill_(x > 1, 0.5)
        return (y / (y.abs() + 1)).sum()


@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("level", [0, 1])
def test_a_view_of_a_changed_argument_keeps_its_old_content(
    monkeypatch: pytest.MonkeyPatch, retain: bool, level: int
) -> None:
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_LEVEL", str(level))
    module = ChangesItsArgument()
    eager = copy.deepcopy(module)
    model = ORTModule(module)
    for runner in (model, eager):
        for _ in range(2):
            runner(torch.arange(12.0).reshape(4, 3)).backward(retain_graph=retain)
    torch.testing.assert_close(module.w.grad, eager.w.grad)


class Difference(nn.Module):
    """With all gradients the kept difference becomes the gradient of z, else a sum on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        y = self.layer(x)
        return (y - z).square().sum(), y


@pytest.mark.parametrize("outputs", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("retain", [False, True])
def test_a_kept_value_that_becomes_a_gradient(outputs: tuple[int, ...], retain: bool) -> None:
    eager = Difference()
    module = copy.deepcopy(eager)
    model = ORTModule(module)
    x = torch.randn(3, 4)
    results = []
    for runner in (model, eager):
        z = torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_()
        for _ in range(2):
            total = sum(runner(x, z)[i].sum() for i in outputs)
            if retain:
                total.backward(retain_graph=True)
            total.backward()
        results.append((z.grad, *(p.grad for p in runner.parameters())))
    for ours, theirs in zip(*results, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs)


class Unchosen(nn.Module):
    """A condition that is known while the model is captured."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.w = (nn.Parameter(torch.ones(4)) for _ in "aw")

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(torch.ones(x.shape, dtype=torch.bool), x * self.a, self.w) * 2


class Constant(nn.Module):
    """The second output has a slope of 0, of whichever parameter."""

    def __init__(self, power: bool) -> None:
        super().__init__()
        self.v, self.w = (nn.Parameter(torch.ones(4)) for _ in "vw")
        self.power = power

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        steps = torch.div(self.w, 0.7, rounding_mode="floor")
        return x * self.v, (self.w.pow(0.0) if self.power else steps) * x


@pytest.mark.parametrize("output", [0, 1])
@pytest.mark.parametrize("module", [Unchosen(), Constant(False), Constant(True)])
def test_none_and_zeros_are_those_of_eager(module: nn.Module, output: int) -> None:
    eager = copy.deepcopy(module)
    model = ORTModule(copy.deepcopy(module))
    for runner in (eager, model):
        result = runner(torch.randn(3, 4))
        (result if isinstance(result, Tensor) else result[output]).sum().backward()
    for ours, wanted in zip(model.parameters(), eager.parameters(), strict=True):
        assert (ours.grad is None) == (wanted.grad is None)
