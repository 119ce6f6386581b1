"""What surrounds a call: grad modes, hooks on saved tensors, lazy signs, autocast."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ortmodule_py import ORTModule, last_run_report
from tests.semantics import QUIET


class TurnsOn(nn.Module):
    """Gradients inside, whatever is outside."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        before = self.fc(x)
        with torch.enable_grad():
            inside = self.fc(x).tanh()
        return before, inside


@pytest.mark.parametrize("outside", [torch.no_grad, torch.enable_grad])
def test_gradients_are_turned_on_inside(outside: Any) -> None:
    module = TurnsOn()
    model = ORTModule(copy.deepcopy(module), QUIET)
    grads = []
    for run in (module, model):
        with outside():
            before, inside = run(torch.ones(2, 4))
        assert before.requires_grad == (outside is torch.enable_grad)
        assert inside.requires_grad
        inside.sum().backward()
        grads.append(run.fc.weight.grad)
    torch.testing.assert_close(*grads)
    assert last_run_report(model)["compiled"]


def test_inference_mode_has_no_gradients() -> None:
    model = ORTModule(TurnsOn(), QUIET)
    with torch.inference_mode():
        before, inside = model(torch.ones(2, 4))
    assert not before.requires_grad and not inside.requires_grad


class Squares(nn.Module):
    """Backward reads the input itself."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(8))
        self.fc = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x).sum() + (x * self.w).square().sum()


def _grads(model: Any, x: Tensor, pack: Any, unpack: Any) -> list[Tensor]:
    model.zero_grad()
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        loss = model(x)
    loss.backward()
    return [p.grad for p in model.parameters()]


@pytest.mark.parametrize(
    "x",
    [torch.randn(8, 16).t(), torch.randn(16, 16)[:, ::2], torch.randn(8).expand(16, 8)],
    ids=["transposed", "sliced", "expanded"],
)
def test_hooks_on_saved_tensors_that_change_strides(x: Tensor) -> None:
    """As `save_on_cpu(pin_memory=True)` does."""
    module = Squares()
    model = ORTModule(copy.deepcopy(module), QUIET)

    def contiguous(saved: Tensor) -> Tensor:
        return saved.detach().clone(memory_format=torch.contiguous_format)

    for given, wanted in zip(
        _grads(model, x, contiguous, lambda t: t),
        _grads(module, x, contiguous, lambda t: t),
        strict=True,
    ):
        torch.testing.assert_close(given, wanted)


def test_hooks_on_saved_tensors_that_give_another_type() -> None:
    model = ORTModule(Squares(), QUIET)
    with pytest.raises(RuntimeError, match="hook on saved tensors must give back"):
        _grads(model, torch.randn(2, 8), lambda t: t.half(), lambda t: t)


def test_an_input_that_is_negated_by_a_bit() -> None:
    x = torch.randn(4, 4, dtype=torch.complex64).conj().imag
    assert x.is_neg()
    module = nn.Linear(4, 4)
    torch.testing.assert_close(ORTModule(copy.deepcopy(module), QUIET)(x), module(x))


class ChangesItsInput(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x.mul_(2.0)
        return x + 1.0


def test_a_negated_input_that_is_changed_is_refused_and_stays_as_it_is() -> None:
    x = torch.randn(4, 4, dtype=torch.complex64).conj().imag
    before = x.clone()
    with pytest.raises(RuntimeError, match="conjugate or negative bit"):
        ORTModule(ChangesItsInput(), QUIET)(x)
    assert torch.equal(x, before)


class Projected(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: Tensor) -> Tensor:
        ctx.save_for_backward(matrix)
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0] @ ctx.saved_tensors[0], None


class Bodies(nn.Module):
    """Matrix products in a user's backward and in a traced gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(16))
        self.a = nn.Parameter(torch.eye(16) * 3 + torch.randn(16, 16) / 9)
        self.register_buffer("matrix", torch.randn(16, 16))

    def forward(self, x: Tensor) -> Tensor:
        y = Projected.apply(x * self.w, self.matrix).square().sum()
        return y + torch.linalg.inv(self.a).square().sum()


def test_backward_is_outside_of_autocast() -> None:
    torch.manual_seed(0)
    module = Bodies()
    model = ORTModule(copy.deepcopy(module), QUIET)
    x = torch.randn(8, 16)
    for run in (module, model):
        with torch.autocast("cpu", torch.bfloat16):
            loss = run(x)
        loss.backward()
    for ours, eager in zip(model.parameters(), module.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, eager.grad, rtol=1e-5, atol=1e-5)
    assert last_run_report(model)["compiled"]


class NormBesideInputs(nn.Module):
    """A sum of inputs that a norm reads, and that is read without it too."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        total = x + y
        return self.norm(total), total.sigmoid(), total


def test_what_no_parameter_reaches_requires_no_gradient() -> None:
    eager = NormBesideInputs()
    model = ORTModule(copy.deepcopy(eager))
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    for ask in (False, True):
        inputs = [x.clone(), y.clone().requires_grad_(ask)]
        theirs, ours = eager(*inputs), model(*inputs)
        flags = [t.requires_grad for t in ours]
        assert flags == [t.requires_grad for t in theirs] == [True, ask, ask]
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one, other)
        for module, outputs in ((eager, theirs), (model, ours)):
            module.zero_grad()
            outputs[0].pow(2).sum().backward()
        for p, q in zip(model.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad)
