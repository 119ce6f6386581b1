"""A user's `autograd.Function` whose backward is not linear in the gradients that arrive."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ortmodule_py import ORTModule, last_run_report
from tests.semantics import Calls, as_in_eager, assert_whole


class AuxiliaryLoss(torch.autograd.Function):
    """The first argument; the second is to be minimized, too (as in mixtures of experts)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, loss: Tensor) -> Tensor:
        ctx.dtype = loss.dtype
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        return grad, torch.ones((), dtype=ctx.dtype)


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.fc = nn.Linear(8, 4), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        gates = self.gate(x).softmax(-1)
        balance = (gates.mean(0) ** 2).sum() * 4
        return AuxiliaryLoss.apply(self.fc(x) * gates[:, :1], balance), (x * x).sum() * self.fc.bias


@pytest.mark.parametrize("output", [0, 1])
def test_an_auxiliary_loss_has_its_gradient(output: int) -> None:
    """And none if what it is tied to gets none."""
    torch.manual_seed(0)
    eager = Gated().double()
    ours = ORTModule(copy.deepcopy(eager))
    x = torch.randn(5, 8, dtype=torch.float64)
    for runner in (eager, ours):
        runner(x)[output].sum().backward()
    assert last_run_report(ours)["compiled"]
    for (name, p), q in zip(eager.named_parameters(), ours.module.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None), name
        if p.grad is not None:
            torch.testing.assert_close(q.grad, p.grad, msg=name)


class Shifted(torch.autograd.Function):
    """Backward adds one to what arrives, be it the zeros of an output that nobody reads."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x + 1, y * 2

    @staticmethod
    def backward(ctx: Any, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return a + 1, b + 1


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.p, self.q = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4))

    def forward(self) -> tuple[Tensor, Tensor]:
        a, b = Shifted.apply(self.p * 1, self.q * 1)
        return a.tanh(), b.tanh()


@pytest.mark.parametrize("outputs", [(0,), (1,), (0, 1)])
def test_absent_gradients_are_zeros_in_a_function_that_is_called(outputs: tuple[int, ...]) -> None:
    eager = Pair()
    ours = ORTModule(copy.deepcopy(eager))
    for runner in (eager, ours):
        results = runner()
        sum(results[i].sum() for i in outputs).backward()
    assert last_run_report(ours)["compiled"]
    for p, q in zip(eager.parameters(), ours.module.parameters(), strict=True):
        assert p.grad is not None and q.grad is not None
        torch.testing.assert_close(q.grad, p.grad)


class TwoOutputs(nn.Module):
    """What `tanh` keeps is a view of the function's second operand, not of its first."""

    def __init__(self) -> None:
        super().__init__()
        self.p, self.fc = nn.Parameter(torch.randn(64)), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        a, b = Shifted.apply(self.p, self.fc(x))
        return (b.tanh() + a).sum()


@pytest.mark.parametrize("level", ["0", "1", "2"])
def test_plans_of_a_function_with_two_outputs(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_LEVEL", level)
    eager = TwoOutputs().double()
    ours = ORTModule(copy.deepcopy(eager))
    x = torch.randn(512, 64, dtype=torch.float64)
    for runner in (eager, ours):
        runner(x).backward()
    torch.testing.assert_close(ours.module.p.grad, eager.p.grad)
    torch.testing.assert_close(ours.module.fc.weight.grad, eager.fc.weight.grad)


_counted_calls: list[tuple[int, ...]] = []


@torch.library.custom_op("ortmodule_tests::counted", mutates_args=())
def counted(x: Tensor) -> Tensor:
    """Leaves a trace of each call, as an operator that logs or counts does."""
    _counted_calls.append(tuple(x.shape))
    return x * 2


counted.register_fake(torch.empty_like)
counted.register_autograd(lambda ctx, grad: grad * 2)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = counted(self.fc(x)).relu()
        return y


def test_an_operator_of_the_users_runs_once_a_step() -> None:
    """Making a plan does not call it."""
    model = ORTModule(Counting())
    _counted_calls.clear()
    for rows in (2, 3, 3):
        model(torch.ones(rows, 4)).sum().backward()
    assert _counted_calls == [(2, 4), (3, 4), (3, 4)]
    assert last_run_report(model)["compiled"]


class Unmaterialized(torch.autograd.Function):
    """Gives gradients of its own for those that are absent."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        return x * 2, y * 2

    @staticmethod
    def backward(ctx: Any, a: Tensor | None, b: Tensor | None) -> Any:
        return None if a is None else a * 2, torch.ones(4) if b is None else b


class UnmaterializedApart(Unmaterialized):
    @staticmethod
    def forward(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, y * 2

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.set_materialize_grads(False)


@pytest.mark.parametrize("function", [Unmaterialized, UnmaterializedApart])
@pytest.mark.parametrize("output", [0, 1])
def test_absent_gradients_that_a_function_does_not_want_as_zeros(
    function: Any, output: int
) -> None:
    class Chosen(Pair):
        def forward(self) -> Any:
            return function.apply(self.p * 1, self.q * 1)[output].tanh()

    torch._dynamo.reset()
    eager = Chosen()
    ours = ORTModule(copy.deepcopy(eager))
    for runner in (eager, ours):
        runner().sum().backward()
    assert last_run_report(ours)["eager_pieces"] or last_run_report(ours)["graph_breaks"]
    for p, q in zip(eager.parameters(), ours.module.parameters(), strict=True):
        torch.testing.assert_close(q.grad, p.grad)


_TORCH_BEFORE_2_13 = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13)


def _function(forward: Callable[..., Any], backward: Callable[..., Any]) -> Any:
    body = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type("Written", (torch.autograd.Function,), body).apply


def _double(ctx: Any, grad: Tensor) -> Tensor:
    return grad * 2


class Applies(nn.Module):
    """A value with a gradient that a function takes and others read behind it."""

    steps: Tensor

    def __init__(self, use: Callable[[Applies, Tensor], Tensor]) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("steps", torch.ones(4))
        self.use = use

    def forward(self, x: Tensor) -> Tensor:
        return self.use(self, self.fc(x))


def _trained(
    use: Callable[[Applies, Tensor], Tensor], loss: Callable[[Tensor], Tensor] = torch.sum
) -> list[str]:
    """Trains both for two steps with the same results; gives what ran in eager PyTorch."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    eager = Applies(use)
    ours = ORTModule(copy.deepcopy(eager))
    x = torch.randn(3, 4)
    for _ in range(2):
        expected, got = eager(x), ours(x)
        torch.testing.assert_close(got, expected)
        assert got.requires_grad == expected.requires_grad
        for result in (expected, got):
            loss(result).backward()
        torch.testing.assert_close(ours.module.steps, eager.steps)
        for (name, p), q in zip(eager.named_parameters(), ours.module.parameters(), strict=True):
            assert (p.grad is None) == (q.grad is None), name
            if p.grad is not None:
                torch.testing.assert_close(q.grad, p.grad, msg=name)
    report = last_run_report(ours)
    assert not report["graph_breaks"]
    return list(report["eager_pieces"])


_doubled_in_place = _function(lambda ctx, x: x.mul_(2), _double)
_rows_doubled = _function(lambda ctx, x: x.view(-1).mul_(2).view(3, 4) * 1, _double)
_of_detached = _function(lambda ctx, x: x.mul_(2) + 1, _double)
_of_held = _function(lambda ctx, x, held: x * held[0].mul_(2), lambda ctx, grad: (grad * 2, None))


@pytest.mark.parametrize(
    "use",
    [
        lambda module, h: _doubled_in_place(h) + h,
        lambda module, h: _rows_doubled(h) + h,
        lambda module, h: _doubled_in_place(h.view(4, 3)).view(3, 4) + h,
        lambda module, h: _of_held(module.fc.bias, [h]) + h,
    ],
    ids=["argument", "view", "view of argument", "within an argument"],
)
def test_a_function_that_changes_a_value_with_a_gradient_unmarked(use: Any) -> None:
    """Eager's gradient passes by the change."""
    (left,) = _trained(use)
    assert "changes its inputs in place" in left or "changed in place where" in left


def test_a_function_that_changes_a_detached_value() -> None:
    """The value keeps its gradient."""
    assert not _trained(lambda module, h: _of_detached(h.detach()) + h)


def _sparsest(ctx: Any, x: Tensor) -> Tensor:
    """The scores less their maximum, as copies of sparsemax write it."""
    x -= x.max(-1, keepdim=True)[0]
    ctx.save_for_backward(x)
    return x.clamp(min=-0.5) * 1


_of_scores = _function(_sparsest, lambda ctx, grad: grad * (ctx.saved_tensors[0] > -0.5) * 2)


def test_a_function_that_changes_a_value_that_nothing_else_reads() -> None:
    assert not _trained(lambda module, h: _of_scores(h * 2) + h)
    assert not _trained(lambda module, h: _of_scores(module.fc(h).mT * 3).mT * h.sin())


def test_a_function_that_changes_a_value_that_is_read_later() -> None:
    def read_by_a_view(module: Any, h: Tensor) -> Tensor:
        scores = h * 2
        first = scores[:1]
        return _of_scores(scores) + first  # type: ignore[no-any-return]

    (left,) = _trained(read_by_a_view)
    assert "changes its inputs in place" in left


_scale = torch.ones(4, requires_grad=True)
_scaled = _function(lambda ctx, x: x * _scale, _double)


@pytest.mark.parametrize("needs_gradient", [False, True])
def test_what_a_function_reads_besides_its_arguments_has_no_gradient(needs_gradient: bool) -> None:
    def use(module: Applies, h: Tensor) -> Tensor:
        return _scaled(h if needs_gradient else h.detach()) + h

    assert not _trained(use)
    assert _scale.grad is None


def _counts(ctx: Any, x: Tensor, steps: Tensor) -> Tensor:
    steps.add_(x.mean(0))
    return x * 2


def test_a_function_that_changes_a_buffer_is_compiled() -> None:
    """Nothing flows from the buffer to what it was changed by."""
    apply = _function(_counts, lambda ctx, grad: (grad * 3, None))
    assert not _trained(lambda module, h: apply(h, module.steps) * module.steps)


def _keeps(ctx: Any, x: Tensor) -> Tensor:
    y = x.exp()
    ctx.save_for_backward(x, y)
    return y


def _keeps_part(ctx: Any, x: Tensor) -> Tensor:
    ctx.save_for_backward(x.exp())
    return x * 2


@pytest.mark.parametrize(
    "forward, backward",
    [
        (_keeps, lambda ctx, grad: grad.mul_(3)),
        (_keeps, lambda ctx, grad: ctx.saved_tensors[0].mul_(grad)),
        (_keeps, lambda ctx, grad: ctx.saved_tensors[1].mul_(grad)),
    ],
    ids=["gradient", "input", "output"],
)
def test_a_backward_that_changes_what_others_see(forward: Any, backward: Any) -> None:
    apply = _function(forward, backward)
    (left,) = _trained(lambda module, h: h * apply(h))
    assert "backward changes a gradient, input or output in place" in left


def test_a_backward_that_changes_what_nobody_else_sees_is_compiled() -> None:
    apply = _function(_keeps_part, lambda ctx, grad: ctx.saved_tensors[0].mul_(grad))
    left = _trained(lambda module, h: h * apply(h))
    # Under torch 2.11 it is left to eager PyTorch all the same.
    assert len(left) == _TORCH_BEFORE_2_13


_stopped = _function(lambda ctx, x, y: x * y, lambda ctx, grad: (None, None))
_passed = _function(lambda ctx, x, y: x * y, lambda ctx, grad: (grad, None))


@pytest.mark.parametrize(
    "use, is_compiled",
    [
        (lambda module, h: _stopped(h, module.fc.bias), False),
        (lambda module, h: _stopped(h, module.fc.bias).sin() + _stopped(h, h * 2), False),
        (lambda module, h: _stopped(h, module.fc.bias) * module.fc.bias, True),
        (lambda module, h: _passed(module.fc.bias, h), True),
        (lambda module, h: _passed(h.detach(), h), False),
        (lambda module, h: _stopped(h.detach(), module.steps) + h, True),
    ],
)
def test_a_function_that_gives_no_gradients(use: Any, is_compiled: bool) -> None:
    """Its outputs require one all the same."""
    assert bool(_trained(use)) != is_compiled


@pytest.mark.parametrize(
    "backward",
    [
        lambda ctx, grad: (grad, grad),
        lambda ctx, grad: (grad, grad, None, grad),
        lambda ctx, grad: (grad, grad, grad),
        lambda ctx, grad: (1.0, grad, None),
    ],
    ids=["two", "four", "of number", "number"],
)
def test_a_backward_that_eager_refuses(backward: Any) -> None:
    apply = _function(lambda ctx, x, y, scale: x * y * scale, backward)
    torch._dynamo.reset()
    messages = []
    for runner in (Applies(lambda module, h: apply(h, h * 2, 3) + h), None):
        eager = Applies(lambda module, h: apply(h, h * 2, 3) + h)
        with pytest.raises(RuntimeError) as caught:
            (runner or ORTModule(eager))(torch.randn(3, 4)).sum().backward()
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_more_gradients_than_arguments_may_be_none() -> None:
    apply = _function(lambda ctx, x, scale: x * scale, lambda ctx, grad: (grad * 3, None, None))
    assert not _trained(lambda module, h: apply(h, 3) + h)


@pytest.mark.parametrize(
    "forward",
    [lambda ctx, x: [x * 2, x + 1], lambda ctx, x: {"twice": x * 2}],
    ids=["list", "dict"],
)
def test_a_forward_that_gives_no_tuple(forward: Any) -> None:
    """Eager hands on what it is, without a gradient."""
    apply = _function(forward, lambda ctx, *grads: grads[0])
    torch._dynamo.reset()
    eager = Applies(lambda module, h: (h.sin(), apply(h.cos())))
    ours, x = ORTModule(eager), torch.randn(3, 4)
    (sine, expected), (same, got) = eager(x), ours(x)
    assert type(got) is type(expected) and same.requires_grad
    torch.testing.assert_close((same, got), (sine, expected))
    broken = " ".join(last_run_report(ours)["graph_breaks"])
    assert f"forward returns neither a tensor nor a tuple ({__file__}" in broken
    assert not any(t.requires_grad for t in (got.values() if isinstance(got, dict) else got))


@torch.library.custom_op("ortmodule_test::twice_by_rows", mutates_args=())
def twice_by_rows(x: Tensor) -> Tensor:
    """As a kernel that takes no strides."""
    assert x.is_contiguous()
    return x * 2


twice_by_rows.register_fake(torch.empty_like)


class ByRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return twice_by_rows(grad.contiguous())


class Pixels(nn.Module):
    """Convolutions that run channels-last inside."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 6, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(ByRows.apply(self.first(x)).relu())
        return y.mean((2, 3))


def test_a_backward_that_makes_its_gradient_contiguous() -> None:
    torch.manual_seed(0)
    eager = Pixels()
    model = ORTModule(copy.deepcopy(eager))
    x = torch.randn(8, 3, 8, 8)
    for module in (eager, model):
        module(x).square().sum().backward()
    for mine, theirs in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)
    assert last_run_report(model)["compiled"]


class Product(torch.autograd.Function):
    """Of two arguments that may be one tensor, as masks of queries and keys are."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        ctx.save_for_backward(x, y, z)
        return x * y + z

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, y, _ = ctx.saved_tensors
        return grad * y * 2, grad * x, grad


def test_a_function_that_takes_one_tensor_several_times() -> None:
    def use(self: Any, x: Tensor) -> Any:
        y = self.fc(x)
        return Product.apply(y, y, y).tanh() + Product.apply(x, y, x)

    def step(model: Any) -> Tensor:
        x = torch.linspace(-1, 1, 12).view(3, 4).requires_grad_()
        model(x).square().sum().backward()
        assert x.grad is not None
        return x.grad

    assert_whole(as_in_eager(Calls(use), step))


class OfItsClass(torch.autograd.Function):
    """Scales by a number of its class, as entmax's functions take their formulas from theirs."""

    factor = 2.0

    @classmethod
    def forward(cls, ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.square() * cls.factor

    @classmethod
    def backward(cls, ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad * x * cls.factor * 3


class OfASubclass(OfItsClass):
    factor = 5.0

    @classmethod
    def forward(cls, ctx: Any, x: Tensor) -> Tensor:
        y: Tensor = super().forward(ctx, x)
        return y + 1


@pytest.mark.parametrize("function", [OfItsClass, OfASubclass])
@pytest.mark.parametrize("trains", [True, False])
def test_class_methods(function: Any, trains: bool) -> None:
    def use(self: Any, x: Tensor) -> Any:
        return function.apply(self.fc(x)).tanh()

    def step(model: Any) -> list[Tensor]:
        results = []
        for rows in (3, 4, 5):
            with torch.set_grad_enabled(trains):
                results.append(model(torch.linspace(-1, 1, 4 * rows).view(rows, 4)))
            if trains:
                results[-1].square().sum().backward()
        return results

    assert_whole(as_in_eager(Calls(use), step), captures=2)
