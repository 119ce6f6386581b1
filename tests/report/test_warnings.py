"""What a user reads about code that is left to eager PyTorch: true, with its place, and once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from ortmodule_py import ORTModule, last_run_report
from ortmodule_py.dynamo.patches.table import running_torch
from tests.semantics import QUIET, Calls

BUDGET = "memory_budget=activations:100%"
LEVEL, CONFIG = "ORTMODULE_MEMORY_OPT_LEVEL", "ORTMODULE_MEMORY_OPT_CONFIG"


def _try(m: Any, x: Tensor) -> Tensor:
    try:
        if m.fc(x).sum() > 1e9:
            return x
    finally:
        x = m.fc(x)
    return x


def _strided(m: Any, x: Tensor) -> Tensor:
    return m.fc(x)[1:].as_strided((2, 2), (4, 1))


def _plain(m: Any, x: Tensor) -> Tensor:
    return m.fc(x)


class Methodical(Calls):
    def training_step(self, x: Tensor) -> Tensor:
        return self.fc(x).sum()


def _call(model: Any) -> None:
    model(torch.ones(3, 4)).sum().backward()


def _with_hooks(model: Any) -> None:
    with register_module_forward_hook(lambda *_: None):
        _call(model)


def _under_grad(model: Any) -> None:
    torch.func.grad(lambda x: model(x).sum())(torch.ones(3, 4))


def _by_method(model: Any) -> None:
    model.training_step(torch.ones(3, 4)).backward()


@pytest.mark.parametrize(
    ("function", "use", "environment", "setting"),
    [
        (_try, _call, {}, BUDGET),
        (_strided, _call, {LEVEL: "1"}, f"{LEVEL}=1"),
        (_strided, _call, {CONFIG: "Gemm+:1:-1"}, CONFIG),
        (_plain, _with_hooks, {}, BUDGET),
        (_plain, _under_grad, {LEVEL: "2"}, f"{LEVEL}=2"),
        (_plain, _by_method, {}, BUDGET),
        (_plain, _call, {"ORTMODULE_BYPASS": "1"}, BUDGET),
    ],
)
def test_memory_options_that_have_no_effect_are_said_once(
    function: Callable[..., Tensor],
    use: Callable[[Any], None],
    environment: dict[str, str],
    setting: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    torch._dynamo.reset()
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    budget = BUDGET.partition("=")[2] if setting == BUDGET else None
    model = ORTModule(Methodical(function), memory_budget=budget)
    for _ in range(3):
        use(model)
    said = [line for line in capsys.readouterr().err.splitlines() if "has no effect" in line]
    assert len(said) == 1 and f"in eager PyTorch, where {setting} has no effect" in said[0], said


def test_nothing_is_said_of_memory_options_that_were_not_set(
    capsys: pytest.CaptureFixture[str],
) -> None:
    torch._dynamo.reset()
    for function, use in ((_strided, _call), (_plain, _under_grad), (_plain, _by_method)):
        use(ORTModule(Methodical(function)))
    assert "has no effect" not in capsys.readouterr().err


class Tries(nn.Module):
    """Instances whose `try` breaks the graph, each by a line of its own."""

    def __init__(self, breaks: int) -> None:
        super().__init__()
        self.fc, self.breaks = nn.Linear(4, 4), breaks

    def forward(self, x: Tensor) -> Tensor:
        try:
            x = self.fc(x)
            if self.breaks == 1 and x.sum().item() > 1e9:
                return x
            if self.breaks == 2:
                torch._dynamo.graph_break()
            if self.breaks == 3:
                x = x + x[x > 0].sum()
        finally:
            x = x * 1
        return x


def test_modules_of_one_class_have_their_own_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    torch._dynamo.reset()
    models = [ORTModule(Tries(breaks), QUIET) for breaks in (1, 2, 3)]
    for model in models * 2:
        model(torch.ones(3, 4)).sum().backward()
    first = Tries.forward.__code__.co_firstlineno
    new = running_torch() >= (2, 13)
    read = "a condition depends on the values" if new else "a number is read from a tensor"
    reasons = (read, "graph_break()", "`x[mask]` or `nonzero` depends on the")
    for model, reason, line in zip(models, reasons, (3, 6, 8), strict=True):
        (piece,) = last_run_report(model)["eager_pieces"]
        assert reason in piece and piece.endswith(f"({__file__}:{first + line})"), piece
        assert piece.startswith("the function forward, which Dynamo cannot trace: ")
    assert "capture_scalar_outputs" not in capsys.readouterr().err  # Dynamo's own advice


class Words:
    """An iterator that no model is behind."""

    def __iter__(self) -> Any:
        for word in ("a", "b"):
            torch._dynamo.graph_break()
            yield word


def test_functions_without_layers_and_tensors_are_no_part_of_the_model() -> None:
    torch._dynamo.reset()

    def function(m: Any, x: Tensor) -> Tensor:
        return m.fc(x) * len(list(Words()))

    model = ORTModule(Calls(function), QUIET)
    _call(model)
    assert not any("__iter__" in piece for piece in last_run_report(model)["eager_pieces"])


@torch.library.custom_op("ortmodule_tests::tripled", mutates_args=())
def _tripled(x: Tensor) -> Tensor:
    return x * 3


torch.library.define("ortmodule_tests::square_grad", "(Tensor dy, Tensor x) -> Tensor")


@torch.library.impl("ortmodule_tests::square_grad", "CPU")
def _square_grad(dy: Tensor, x: Tensor) -> Tensor:
    return 2 * dy * x


@torch.library.custom_op("ortmodule_tests::square", mutates_args=())
def _square(x: Tensor) -> Tensor:
    return x * x


_square.register_fake(torch.empty_like)
_square.register_autograd(
    lambda ctx, dy: torch.ops.ortmodule_tests.square_grad(dy, *ctx.saved_tensors),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)

UNTRACEABLE: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "the gradient of igamma: torch has no formula for it": lambda m, x: torch.igamma(
        m.fc(x).abs() + 1, x
    ),
    "gradient of ortmodule_tests.square: torch has no rule for the shapes of ortmodule_tests.square_grad": (
        lambda m, x: _square(m.fc(x))
    ),
    "`ortmodule_tests.tripled` cannot run without the values of tensors; register a fake": (
        lambda m, x: _tripled(m.fc(x))
    ),
    "the element type must be one that ortmodule_py knows, but found 'qint8'": lambda m, x: (
        torch.quantize_per_tensor(m.fc(x).detach(), 0.1, 0, torch.qint8).dequantize()
    ),
}


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize("reason", UNTRACEABLE)
def test_exceptions_of_the_tracer_are_no_reasons(reason: str) -> None:
    torch._dynamo.reset()
    function = UNTRACEABLE[reason]
    model = ORTModule(Calls(function), QUIET)
    with contextlib.suppress(NotImplementedError):  # eager raises it, too
        model(torch.rand(3, 4))
    (piece,) = last_run_report(model)["eager_pieces"]
    assert reason in piece and f"{__file__}:" in piece, piece
    assert "Error" not in piece and "Exception" not in piece and "FakeTensor" not in piece, piece
