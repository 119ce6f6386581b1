"""`check` says what differs from eager PyTorch, and leaves no trace."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import numpy
import pytest
import torch
from torch import Tensor, nn

from ortmodule_py import CheckReport, ORTModule, check, last_run_report
from tests.small_modules import (
    Breaking,
    ChangesInput,
    Dropping,
    Wrong,
    assert_same,
    everything,
    not_a_leaf,
)


def dropping_batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(6, 8, generator=generator)
    return x, torch.randint(0, 4, (6,), generator=generator)


def test_a_model_with_dropout_is_as_in_eager() -> None:
    torch.manual_seed(0)
    x, target = dropping_batch()
    report = check(Dropping(), x, target=target)
    assert isinstance(report, CheckReport) and report.ok and report.differences == []
    assert report.eager_draws and report.reference == "float64"
    assert report.loss == pytest.approx(report.eager_loss, rel=1e-5)
    assert report.gradients == 6 and report.absent_gradients == ["unused"]
    assert report.worst_gradient_error <= report.worst_gradient_allowed
    assert report.compiled and report.nodes_aten_fallback == 0 and report.aten_share == 0
    assert report.peak_bytes > 0 and report.eager_peak_bytes > 0
    assert report.step_ms > 0 and report.eager_step_ms > 0 and report.repeats == 5
    values = json.loads(report.to_json())
    assert values == report.to_dict()
    text = str(report)
    assert "as in eager PyTorch" in text and report.worst_gradient in text


def test_nothing_is_changed() -> None:
    torch.manual_seed(0)
    x, target = dropping_batch()
    model = ORTModule(Dropping())
    model(x, target)["loss"].backward()
    model.module.norm.eval()
    captures = last_run_report(model)["captures"]
    x.requires_grad_()
    kept, before = x.detach().clone(), everything(model.module)
    state, legacy = random.getstate(), numpy.random.get_state()[1].copy()
    assert check(model, x, target).ok
    assert_same(before, everything(model.module))
    assert random.getstate() == state and (numpy.random.get_state()[1] == legacy).all()
    assert x.grad is None and torch.equal(x, kept)
    assert last_run_report(model)["captures"] == captures
    assert torch.is_grad_enabled()


def test_a_difference_is_named() -> None:
    torch.manual_seed(0)
    report = check(Wrong(), torch.randn(3, 4))
    assert not report.ok
    assert report.worst_gradient in ("a.weight", "a.bias", "b.weight", "b.bias")
    assert report.differences[0].startswith(f"gradient {report.worst_gradient}: error ")
    assert report.worst_gradient_error > report.worst_gradient_allowed
    assert "NOT as in eager PyTorch" in str(report) and report.differences[0] in str(report)


class Turning(nn.Module):
    """Complex parameters, buffers and results; if `wrong`, other imaginary parts when it is compiled."""

    def __init__(self, wrong: bool) -> None:
        super().__init__()
        self.wrong = wrong
        self.weight = nn.Parameter(torch.randn(4, dtype=torch.complex64))
        self.register_buffer("turns", torch.randn(4, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        y = x * self.weight * self.turns
        if self.wrong and torch.compiler.is_compiling():
            y = torch.complex(y.real, y.imag * 1.01)
        return y


@pytest.mark.parametrize("wrong", [False, True])
def test_complex_numbers_are_compared_by_their_parts(wrong: bool) -> None:
    torch.manual_seed(0)
    report = check(Turning(wrong), torch.randn(3, 4))
    assert report.gradients == 1 and report.worst_gradient == "weight"
    assert report.reference == "float64" and report.largest_gradient > 0.1
    assert report.ok != wrong, report.differences
    if wrong:
        assert {d.partition(": error ")[0] for d in report.differences} == {
            "gradient weight",
            "output output",
        }


class Returning(nn.Module):
    """Gives back what a function makes of a linear layer's result."""

    def __init__(self, make: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.make = make

    def forward(self, x: Tensor) -> object:
        return self.make(self.fc(x))


def test_what_is_not_compiled_is_listed() -> None:
    report = check(Breaking(), torch.randn(3, 4))
    assert report.ok and report.compiled and len(report.graph_breaks) == 1
    assert "graph break: " in str(report)
    report = check(Returning(lambda y: y.cummax(0)[0].sum()), torch.randn(5, 4))
    assert report.ok and report.aten_operators == {"aten.cummax.default": 1}
    assert report.nodes_aten_fallback == 1 and 0 < report.aten_share < 1
    assert "  1 x aten.cummax.default" in str(report)
    report = check(ChangesInput(), not_a_leaf())
    assert report.ok and not report.compiled
    (piece,) = report.eager_pieces
    assert piece.startswith("a value with a gradient is changed in place where gradients are off (")
    assert "small_modules.py:" in piece and f"runs in eager PyTorch: {piece}" in str(report)


@pytest.mark.parametrize(
    ("make", "is_loss"),
    [
        (lambda y: y.mean(), True),
        (lambda y: (y.mean(), y), True),
        (lambda y: {"loss": y.mean(), "rest": (y, [None, 3])}, True),
        (lambda y: (y, y.mean()), False),
        (lambda y: {"a": y.detach(), "b": y.argmax(-1), "c": y * 2}, False),
        (lambda y: y.detach(), None),
    ],
)
def test_losses(make: Callable[[Tensor], object], is_loss: bool | None) -> None:
    torch.manual_seed(0)
    module, x = Returning(make), torch.randn(5, 4)
    report = check(module, x)
    assert report.ok, report.differences
    if is_loss is None:
        assert report.eager_loss is None and report.gradients == 0
    elif is_loss:
        assert report.eager_loss == pytest.approx(float(module.fc(x).detach().mean()))


def test_low_precision_and_eval() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8)).eval()
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        report = check(module, torch.randn(4, 16))
    assert report.ok, report.differences
    assert report.gradients == 4
    assert check(module.bfloat16(), torch.randn(4, 16).bfloat16()).ok


class Noise(nn.Module):
    """Other numbers in float64, so that float64 says nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(64))

    def forward(self, x: Tensor) -> Tensor:
        return (self.w * x * torch.randn_like(x)).sum()


def test_eager_is_the_reference_where_float64_draws_other_numbers() -> None:
    report = check(Noise(), torch.randn(8, 64))
    assert report.reference == "eager (float64 computes something else)"
    assert report.ok, report.differences


def test_errors() -> None:
    with pytest.raises(TypeError, match=r"^\[check\] model must be a torch.nn.Module, but found f"):
        check(lambda x: x, 1)  # type: ignore[arg-type]
    module = nn.Linear(2, 2)
    module.weight_twice = module.weight * 2  # type: ignore[assignment]
    with pytest.raises(TypeError, match=r"^\[check\] the module must allow copy.deepcopy"):
        check(module, torch.ones(2, 2))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        check(nn.Linear(2, 2), torch.ones(2, 3))
