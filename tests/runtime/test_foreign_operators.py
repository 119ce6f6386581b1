"""Operators that others registered: whatever they do with their arguments and results, they do to
memory of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ortmodule_py import ORTModule, last_run_report

_kept: list[Tensor] = []
_tables: dict[int, Tensor] = {}


@torch.library.custom_op("ortmodule_tests::watch", mutates_args=())
def watch(x: Tensor) -> Tensor:
    """Keeps its argument, as an operator that gathers statistics does."""
    _kept.append(x.detach())
    return x.clone()


@torch.library.custom_op("ortmodule_tests::positions", mutates_args=())
def positions(x: Tensor) -> Tensor:
    """Keeps what it returns."""
    length = x.shape[1]
    if length not in _tables:
        _tables[length] = torch.linspace(0, 1, length * 8).view(length, 8).clone()
    return _tables[length]


@torch.library.custom_op("ortmodule_tests::through_numpy", mutates_args=())
def through_numpy(x: Tensor) -> Tensor:
    """Shares memory with its argument, which torch does not see."""
    return torch.from_numpy(np.ascontiguousarray(x.numpy(), dtype=np.float32))


@torch.library.custom_op("ortmodule_tests::accumulate", mutates_args={"total"})
def accumulate(x: Tensor, total: Tensor) -> None:
    """Writes to an argument."""
    total.add_(x.mean())


@torch.library.custom_op("ortmodule_tests::squared", mutates_args=())
def squared(x: Tensor) -> Tensor:
    """Has a gradient that is differentiable in turn."""
    return x * x


def _keep_operand(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


squared.register_fake(torch.empty_like)
squared.register_autograd(
    lambda ctx, grad: 2 * ctx.saved_tensors[0] * grad, setup_context=_keep_operand
)

_library = torch.library.Library("ortmodule_tests_twice", "DEF")
_library.define("twice(Tensor x) -> (Tensor, Tensor)")


def _twice(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.sin()
    return y, y


_library.impl("twice", _twice, "CPU")
torch.library.register_fake(
    "ortmodule_tests_twice::twice",
    lambda x: (torch.empty_like(x), torch.empty_like(x)),
    lib=_library,
)
for _operator in (watch, through_numpy):
    _operator.register_fake(torch.empty_like)
    _operator.register_autograd(lambda ctx, grad: grad)
positions.register_fake(lambda x: x.new_empty(x.shape[1], 8))


class Layer(nn.Module):
    """``compute`` of a linear layer's result."""

    def __init__(self, compute: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.compute = compute

    def forward(self, x: Tensor) -> Tensor:
        """The result of ``compute``."""
        return self.compute(self.linear(x))


def _compare(compute: Callable[[Tensor], Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Compares a few steps with eager; what `watch` kept in both, eager first."""
    eager = Layer(compute)
    ours = ORTModule(Layer(compute))
    ours.load_state_dict(eager.state_dict())
    kept = []
    batches = [torch.randn(rows, 6, 8) for rows in (20, 50, 30, 20)]
    results: list[list[list[Tensor]]] = []
    for model in (eager, ours):
        _forget_all()
        results.append([_step(model, batch) for batch in batches])
        kept.append(list(_kept))
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-3)
    assert last_run_report(ours)["eager_pieces"] == []
    return kept[0], kept[1]


def _forget_all() -> None:
    _kept.clear()
    _tables.clear()


def _step(model: nn.Module, batch: Tensor) -> list[Tensor]:
    x = batch.clone().requires_grad_()
    y = model(x)
    spoiled = [torch.full((size,), torch.nan) for size in range(8, 40_000, 997)]
    del spoiled
    return [y, *torch.autograd.grad(y.square().sum(), [x, *model.parameters()])]


def test_what_an_operator_keeps_of_its_arguments_stays_as_it_was() -> None:
    eager, ours = _compare(lambda h: watch(h).relu())
    torch.testing.assert_close(ours, eager)


def test_what_an_operator_keeps_of_its_results_is_not_written_to() -> None:
    _compare(lambda h: h + (positions(h.detach()) * 3 + 1))
    assert torch.equal(_tables[6], torch.linspace(0, 1, 48).view(6, 8))


def test_a_result_that_shares_its_argument_s_memory_is_kept_for_backward() -> None:
    _compare(lambda h: through_numpy(h * 2).sin() * h)


def test_one_tensor_for_two_results_is_two_results() -> None:
    def compute(h: Tensor) -> Tensor:
        a, b = torch.ops.ortmodule_tests_twice.twice(h.detach())
        return h * ((a * 3 + 1) @ torch.ones(8, 8)) + (b * 2).softmax(-1)

    _compare(compute)


def test_an_operator_that_writes_to_an_argument_runs_in_eager_and_is_named() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)
            self.register_buffer("total", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            h: Tensor = self.linear(x)
            accumulate(h.detach(), self.total)
            return h.sin().sum()

    model = ORTModule(Counting())
    x = torch.randn(3, 8)
    model(x).backward()
    torch.testing.assert_close(model.total, model.linear(x).mean().detach())
    (piece,) = last_run_report(model)["eager_pieces"]
    assert "accumulate" in str(piece) and "mutates_args" in str(piece), piece


def test_gradients_of_an_operators_own_gradient() -> None:
    """torch runs its formula as an autograd.Function below the engine's steps."""

    def penalty(model: nn.Module) -> list[Tensor]:
        x = torch.ones(4, 8, requires_grad=True)
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        return list(torch.autograd.grad(slope.square().sum(), [x, model.linear.weight]))

    eager = Layer(lambda x: squared(x).tanh())
    ours = ORTModule(eager)
    for _ in range(3):
        torch.testing.assert_close(penalty(ours), penalty(eager))
