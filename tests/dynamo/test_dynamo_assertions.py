"""Assertions and index errors: Dynamo's own leave a module to eager PyTorch, the user's are the user's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ortmodule_py import ORTModule, last_run_report
from tests.semantics import QUIET

_TORCH_BEFORE_2_13 = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13)


class Sine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        cosine: Tensor = x.cos()
        return grad * cosine


class Derived(Sine):
    """Dynamo fails on it with an AssertionError, where it wraps other errors."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return Sine.backward(ctx, grad) * 3


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        return y, y

    @staticmethod
    def backward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        return (a + b) * 2


def _product(x: Tensor) -> Tensor:
    a, b = Twice.apply(x)
    result: Tensor = a * b
    return result


class Applies(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor], breaks: bool) -> None:
        super().__init__()
        self.fc, self.function, self.breaks = nn.Linear(4, 4), function, breaks
        self.calls: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.calls.append(len(x))
        h = self.fc(x)
        if self.breaks:
            torch._dynamo.graph_break()
        return self.function(h).tanh()


@pytest.mark.parametrize("breaks", [False, True])
@pytest.mark.parametrize("function", [Derived.apply, _product], ids=["derived", "twice"])
def test_a_failed_assertion_of_dynamos_is_no_error(
    function: Callable[[Tensor], Tensor], breaks: bool
) -> None:
    torch._dynamo.reset()
    eager = Applies(function, breaks)
    ours = ORTModule(copy.deepcopy(eager), QUIET)
    for rows in (2, 3):
        x = torch.randn(rows, 4)
        for runner in (eager, ours):
            runner(x).sum().backward()
    torch.testing.assert_close(ours.module.fc.weight.grad, eager.fc.weight.grad)
    assert ours.module.calls == [2, 3]
    report = last_run_report(ours)
    left = report["eager_pieces"]
    if _TORCH_BEFORE_2_13 and function is not _product:  # there the graph breaks at it
        assert left or any("graph_break()" not in line for line in report["graph_breaks"])
    else:
        why = "on which Dynamo fails with an error of its own"
        assert left and all(why in piece for piece in left) and len(left) <= 1 + breaks


def _asserts(x: Tensor) -> Tensor:
    assert len(x) < 3, "mine"
    return x * 2


def _indexes(x: Tensor) -> Tensor:
    return x * [1, 2, 3][len(x)]


def _asserts_of_data(x: Tensor) -> Tensor:
    assert x.abs().max().item() < 0, "mine"
    return x * 2


@pytest.mark.parametrize("breaks", [False, True])
@pytest.mark.parametrize("function", [_asserts, _indexes, _asserts_of_data])
def test_an_assertion_of_the_users_is_eagers(
    function: Callable[[Tensor], Tensor], breaks: bool
) -> None:
    """And what ran before it has run once."""
    torch._dynamo.reset()
    eager = Applies(function, breaks)
    ours = ORTModule(copy.deepcopy(eager), QUIET)
    for _ in range(2):
        for runner in (eager, ours):
            with pytest.raises((AssertionError, IndexError)) as caught:
                runner(torch.randn(3, 4))
            assert str(caught.value).startswith(("mine", "list index out of range"))
    assert ours.module.calls == eager.calls == [3, 3]
