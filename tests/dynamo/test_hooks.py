"""The user's own code in the midst of it: hooks, autograd functions, checkpoints."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules import module as of_all_modules
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from ortmodule_py import ORTModule, last_run_report
from ortmodule_py.dynamo.patches.table import running_torch
from tests.semantics import QUIET, Calls, as_in_eager, assert_compiled, assert_whole, original


def _tanh(self: Any, x: Tensor) -> Tensor:
    return self.fc(x).tanh()


def _steps(model: Any, count: int = 3) -> list[Tensor | None]:
    """Gradients of inputs of several steps."""
    found = []
    for i in range(count):
        x = torch.full((3, 4), 0.1 * i, requires_grad=True)
        model(x).sum().backward()
        found.append(x.grad)
    return found


class Scaled(torch.autograd.Function):
    """A backward that is not the gradient of its forward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, factor: float) -> Tensor:
        ctx.save_for_backward(x, w)
        ctx.factor = factor
        return x * w * factor

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, w = ctx.saved_tensors
        second = (grads[0] * x * ctx.factor).sum(0) if ctx.needs_input_grad[1] else None
        return grads[0] * w * 7, second, None


class Outside(torch.autograd.Function):
    """Leaves torch, so that only eager PyTorch can run it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.tensor(x.tolist()) * 2

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return torch.tensor(grads[0].tolist()) * 3


def test_an_own_backward() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        return Scaled.apply(self.fc(x), self.fc.bias, 3.0)  # type: ignore[no-any-return, no-untyped-call]

    assert_compiled(as_in_eager(Calls(forward), _steps))


def test_an_own_backward_outside_of_torch() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        y: Tensor = Outside.apply(self.fc(x))  # type: ignore[no-untyped-call]
        return self.fc(y).tanh()

    report = as_in_eager(Calls(forward), _steps)
    assert report["graph_breaks"] or report["eager_pieces"]


def test_a_hook_on_a_value() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        h = self.fc(x)
        h.register_hook(lambda gradient: gradient * 2)
        return h.tanh()

    assert_compiled(as_in_eager(Calls(forward), _steps))


def _twice(h: Tensor, x: Tensor) -> None:
    h.register_hook(lambda gradient: gradient * 2)
    h.register_hook(lambda gradient: gradient + x.sum())
    h.register_hook(lambda gradient: None)


def test_several_hooks_on_a_value_are_called_in_their_order() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        h = self.fc(x)
        _twice(h, x)
        return h.tanh() * h.sum()

    assert_whole(as_in_eager(Calls(forward), _steps))


@pytest.mark.parametrize("strength", ["argument", "computed"])
def test_hooks_on_a_returned_value_come_before_those_of_the_caller(strength: str) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        h = self.fc(x).tanh()
        _twice(h, x.detach() * 3 if strength == "computed" else x)
        return h

    def step(model: Any) -> list[Tensor]:
        seen: list[Tensor] = []
        for i in range(3):
            y = model(torch.full((3 + i, 4), 0.1 * i))
            y.register_hook(seen.append)
            y.square().sum().backward()
        return seen

    assert_whole(as_in_eager(Calls(forward), step))


def test_a_hook_that_records_what_an_earlier_one_makes() -> None:
    """The graph breaks between the two."""

    def forward(self: Any, x: Tensor) -> Tensor:
        h = self.fc(x).tanh()
        h.register_hook(lambda gradient: gradient * 2)
        h.register_hook(lambda gradient: self.seen.append(gradient))
        return self.fc(h)

    def step(model: Any) -> list[Any]:
        return [_steps(model), list(model.seen)]

    reasons = as_in_eager(Calls(forward, seen=[]), step)["graph_breaks"]
    if running_torch() >= (2, 13):  # before, the function is left to Python
        assert "changes something outside" in str(reasons)


class Recording(nn.Module):
    """A hook that leaves a trace in Python each time it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.norms: list[float] = []

    def forward(self, x: Tensor) -> Tensor:
        h = self.fc(x)
        if h.requires_grad:
            h.register_hook(lambda gradient: self.norms.append(float(gradient.norm())))
        return h.tanh()


def test_a_hook_that_records() -> None:
    def step(model: Any) -> Any:
        found = _steps(model)
        return [found, len(model.norms), torch.tensor(model.norms)]

    as_in_eager(Recording(), step)


def test_hooks_on_parameters() -> None:
    def step(model: Any) -> Any:
        seen = {"hook": 0, "after": 0}

        def tripled(gradient: Tensor) -> Tensor:
            seen["hook"] += 1
            return gradient * 3

        def counted(_: Tensor) -> None:
            seen["after"] += 1

        handle = model.fc.weight.register_hook(tripled)
        model.fc.bias.register_post_accumulate_grad_hook(counted)
        _steps(model)
        handle.remove()
        _steps(model, 1)
        return seen

    assert_compiled(as_in_eager(Calls(_tanh), step))


def test_forward_hooks_of_submodules() -> None:
    """Registered before and after the first call, and removed again."""

    def step(model: Any) -> Any:
        calls: dict[str, int] = {"before": 0, "after": 0}

        def before(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            calls["before"] += 1
            return (args[0] + 1,)

        def after(_: nn.Module, args: Any, result: Tensor) -> Tensor:
            calls["after"] += 1
            return result * 2

        handle = model.fc.register_forward_hook(after)
        found = _steps(model)
        other = model.fc.register_forward_pre_hook(before)
        found += _steps(model)
        handle.remove()
        other.remove()
        return [found + _steps(model), calls]

    assert as_in_eager(Calls(_tanh), step)["compiled"]


def test_hooks_of_the_module_itself() -> None:
    """On the wrapper and on the original: each fires once per call."""

    def step(model: Any) -> Any:
        calls = {"outer": 0, "inner": 0, "backward": 0}

        def count(name: str) -> Any:
            def hook(*_: Any) -> None:
                calls[name] += 1

            return hook

        model.register_forward_hook(count("outer"))
        model.register_full_backward_hook(count("backward"))
        original(model).register_forward_hook(count("inner"))
        return [_steps(model), calls]

    as_in_eager(Calls(_tanh), step)


@pytest.mark.parametrize("kind", ["register_full_backward_hook", "register_full_backward_pre_hook"])
def test_backward_hooks_of_submodules(kind: str) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        return self.last(self.fc(x * 1)).tanh()

    def step(model: Any) -> Any:
        calls = []

        def doubled(_: nn.Module, *gradients: Any) -> Any:
            calls.append(1)
            return tuple(None if g is None else g * 2 for g in gradients[0])

        getattr(model.fc, kind)(doubled)
        return [_steps(model), calls]

    as_in_eager(Calls(forward, last=nn.Linear(4, 4)), step)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoints(use_reentrant: bool) -> None:
    """Dissolved into the plan, whichever kind: gradients as in eager, in one capture."""

    def forward(self: Any, x: Tensor) -> Tensor:
        for _ in range(2):
            x = checkpoint(lambda t: self.fc(t).tanh(), x, use_reentrant=use_reentrant)
        return x

    assert_compiled(as_in_eager(Calls(forward), _steps))


@pytest.mark.parametrize("as_list", [False, True])
def test_a_sequence_of_checkpoints(as_list: bool) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        layers = list(self.layers) if as_list else self.layers
        result: Tensor = checkpoint_sequential(layers, 2, self.fc(x), use_reentrant=False)
        return result

    layers = nn.Sequential(*(nn.Linear(4, 4) for _ in range(5)))
    assert_compiled(as_in_eager(Calls(forward, layers=layers), _steps))


@pytest.mark.parametrize(
    ("use_reentrant", "count", "words"),
    [
        (False, 2, "2 regions of torch.utils.checkpoint are"),
        (True, 1, "1 region of torch.utils.checkpoint is"),
    ],
)
def test_checkpoints_are_mentioned_once(
    use_reentrant: bool, count: int, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        for _ in range(count):
            x = checkpoint(lambda t: self.fc(t).tanh(), x, use_reentrant=use_reentrant)
        return x

    torch._dynamo.reset()
    model = ORTModule(Calls(forward))
    model._logger.addHandler(caplog.handler)
    for rows in (2, 3):
        model(torch.ones(rows, 4, requires_grad=True)).sum().backward()
    said = [r for r in caplog.records if "torch.utils.checkpoint" in r.getMessage()]
    assert len(said) == 1 and said[0].levelno == logging.WARNING
    assert f"{words} part of the graph" in said[0].getMessage()


def test_a_missing_second_derivative_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_RNG", "torch")

    def forward(self: Any, x: Tensor) -> Tensor:
        y = self.fc(x)
        return functional.scaled_dot_product_attention(y, y, y, dropout_p=0.5)

    model = ORTModule(Calls(forward), QUIET)
    x = torch.randn(3, 2, 5, 4, requires_grad=True)
    words = r"\[gradient\].* draw numbers again.*test_hooks.py:\d+\).*set ORTMODULE_BYPASS=1"
    with pytest.raises(RuntimeError, match=words):
        (slope,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
        slope.sum().backward()  # the first gradient reads what forward has computed for it
    (gradient,) = torch.autograd.grad(model(x).square().sum(), x)
    assert gradient.abs().sum() > 0 and last_run_report(model)["compiled"]


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(6)
        )

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        return x.square().mean()


def test_checkpoints_ask_for_recomputation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless a level is given, be it 0."""
    x = torch.randn(128, 64)
    peaks = []
    for level in (None, "0"):
        monkeypatch.delenv("ORTMODULE_MEMORY_OPT_LEVEL", raising=False)
        if level is not None:
            monkeypatch.setenv("ORTMODULE_MEMORY_OPT_LEVEL", level)
        model = ORTModule(Checkpointed(), QUIET)
        model(x).backward()
        peaks.append(last_run_report(model)["measured_peak_bytes"])
    assert peaks[0] < 0.7 * peaks[1]


@pytest.mark.parametrize("backward", [False, True])
def test_hooks_that_come_and_go_between_calls(backward: bool) -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    model = ORTModule(module, QUIET)
    x = torch.randn(3, 4)
    fired: list[int] = []

    def scale(layer: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        fired.append(1)
        return output * 100

    def scale_gradient(layer: nn.Module, given: Any, received: Any) -> Any:
        fired.append(1)
        return (given[0] * 100,)

    for _ in range(2):  # without, with, without, with
        for hooked in (False, True):
            handle = None
            if hooked and backward:
                handle = module[0].register_full_backward_hook(scale_gradient)
            elif hooked:
                handle = module[0].register_forward_hook(scale)
            found = []
            for run in (module, model):
                leaf = x.clone().requires_grad_()
                y = run(leaf)
                y.sum().backward()
                found.append((y.detach(), leaf.grad))
            for eager, ours in zip(*found, strict=True):
                torch.testing.assert_close(ours, eager)
            assert len(fired) == 2 * hooked
            fired.clear()
            if handle is not None:
                handle.remove()


def test_a_backward_hook_of_the_module_itself_that_is_removed() -> None:
    """Dynamo captures nothing of a container of torch with such a hook, but captures it again without."""
    torch._dynamo.reset()
    module = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    model = ORTModule(module, QUIET)
    x = torch.randn(3, 4)
    runs = []
    for hooked in (False, True, False, True, False):
        handle = module.register_full_backward_hook(lambda *_: None) if hooked else None
        for _ in range(2):
            torch.testing.assert_close(model(x), module(x))
        runs.append(model._compiler.last.piece_runs)
        if handle is not None:
            handle.remove()
    assert runs[::2] == [1, 1, 1]


@pytest.mark.skipif(
    running_torch() < (2, 13), reason="before 2.13 torch reads the number from a tensor"
)
def test_a_hook_that_scales_a_gradient_by_a_number_that_changes() -> None:
    """Gradient reversal, with a schedule."""

    def forward(self: Any, x: Tensor) -> Tensor:
        y, strength = self.fc(x) * 2, self.strength
        y.register_hook(lambda gradient: -strength * gradient + strength)
        result: Tensor = self.last(y)
        return result

    def step(model: Any) -> list[Tensor]:
        found = []
        for i in range(6):
            original(model).strength = 0.1 * i
            found += _steps(model)
        return found

    module = Calls(forward, last=nn.Linear(4, 4), strength=0.0)
    assert_compiled(as_in_eager(module, step), captures=2)


# ---- hooks of all modules -----------------------------------------------------------------------

REGISTER: dict[str, Callable[[Any], Any]] = {
    "forward": lambda hook: of_all_modules.register_module_forward_hook(hook),
    "forward pre": lambda hook: of_all_modules.register_module_forward_pre_hook(hook),
    "backward": lambda hook: of_all_modules.register_module_full_backward_hook(hook),
    "backward pre": lambda hook: of_all_modules.register_module_full_backward_pre_hook(hook),
}


@pytest.mark.parametrize(
    ("kind", "captured_before"),
    [("forward", True), ("forward pre", False), ("backward", True), ("backward pre", False)],
)
def test_hooks_of_all_modules(kind: str, captured_before: bool) -> None:
    """They see the original and its layers, once each, and not the wrapper."""
    torch._dynamo.reset()
    model = ORTModule(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), QUIET)
    if captured_before:
        _steps(model, 1)
    found: list[list[str]] = []
    for runner in (model.module, model):
        seen: list[str] = []
        handle = REGISTER[kind](lambda part, *_, seen=seen: seen.append(type(part).__name__))
        try:
            _steps(runner, 2)
        finally:
            handle.remove()
        found.append(seen)
    assert found[1] == found[0] and len(found[0]) == 6
    (piece,) = last_run_report(model)["eager_pieces"]
    assert "hooks of all modules" in piece
    runs = model._compiler.runs
    _steps(model, 1)
    assert model._compiler.runs == runs + 1


def test_hooks_of_all_modules_beside_one_of_the_wrapper() -> None:
    torch._dynamo.reset()
    model = ORTModule(nn.Linear(4, 4), QUIET)
    own: list[str] = []
    model.register_forward_hook(lambda *_: own.append("own"))
    layers: list[nn.Module] = []
    with of_all_modules.register_module_forward_hook(lambda part, *_: layers.append(part)):
        _steps(model, 1)
    assert own == ["own"] and layers.count(model.module) == 1
