"""What Dynamo leaves to eager PyTorch, or fails on, is counted and said, never silent and no error."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ortmodule_py import DebugOptions, LogLevel, ORTModule, ORTModuleError, last_run_report

QUIET = DebugOptions(log_level=LogLevel.ERROR)


class Layers(nn.Module):
    def __init__(self, choose: Callable[[nn.ModuleList, Tensor], Tensor]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.choose = choose

    def forward(self, x: Tensor) -> Tensor:
        return self.choose(self.layers, x) + self.layers[0](x)


def _break_in_try(layers: nn.ModuleList, x: Tensor) -> Tensor:
    try:
        x = layers[0](x)
        torch._dynamo.graph_break()
        x = layers[1](x)
    finally:
        x = x * 1
    return x


def test_a_function_that_dynamo_skips() -> None:
    torch._dynamo.reset()
    model = ORTModule(Layers(_break_in_try), QUIET)
    x = torch.randn(3, 4)
    for seed in range(4):
        torch.manual_seed(seed)
        got = model(x)
        torch.manual_seed(seed)
        torch.testing.assert_close(got, model.module(x))
        got.sum().backward()
    report = last_run_report(model)
    (left,) = (piece for piece in report["eager_pieces"] if "function _break_in_try" in piece)
    why = "Dynamo cannot trace: Call to `torch._dynamo.graph_break()`"
    place = f"({__file__}:{_break_in_try.__code__.co_firstlineno + 3})"
    assert why in left and left.endswith(place), left
    assert not report["compiled"] and len(report["eager_pieces"]) <= 2, report


class Branches(nn.Module):
    """A condition on data outside of a loop: two pieces on each way, and both are compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        if x.sum() > 0:
            return y * 2
        return y.tanh()


def test_a_break_outside_of_a_loop_leaves_nothing() -> None:
    torch._dynamo.reset()
    model = ORTModule(Branches(), QUIET)
    for sign in (1.0, -1.0):
        x = torch.full((3, 4), sign)
        torch.testing.assert_close(model(x), model.module(x))
    report = last_run_report(model)
    assert report["compiled"] and report["captures"] == 3 and report["graph_breaks"], report


class Scaled(nn.Module):
    """Dynamo itself fails on the square of a float that may be negative."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.t = 0.0
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.fc(x) * (1 - self.t) ** 2


def test_a_failure_of_dynamo_is_no_error() -> None:
    torch._dynamo.reset()
    model = ORTModule(Scaled(), QUIET)
    x = torch.randn(3, 4)
    for step in range(5):
        model.t = 0.3 + 0.3 * step
        torch.testing.assert_close(model(x), model.fc(x) * (1 - model.t) ** 2)
        assert model.calls == step + 1
    assert len(last_run_report(model)["eager_pieces"]) <= 1


class WrongWhenTraced(nn.Module):
    """As models that build other masks in a capture than in eager."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) @ torch.ones(7 if torch.compiler.is_compiling() and len(x) > 4 else 4, 2)


def test_what_cannot_be_traced_is_not_tried_at_every_call() -> None:
    torch._dynamo.reset()
    model = ORTModule(WrongWhenTraced(), QUIET)
    wide, narrow = torch.randn(8, 4), torch.randn(2, 4)
    model(narrow)
    tried = []
    for _ in range(6):
        torch.testing.assert_close(model(wide), model.module(wide))
        tried.append(torch._dynamo.utils.counters["frames"]["total"])
    assert tried[1] > tried[0] and tried[2] == tried[-1], tried
    report = last_run_report(model)
    (piece,) = report["eager_pieces"]
    assert "raises an error while it is captured: a and b must have" in piece, piece
    assert not report["compiled"]
    forwards = model._compiler.runs
    model(narrow)  # is captured
    assert model._compiler.runs == forwards + 1 and last_run_report(model)["compiled"]
    with torch.no_grad():  # another capture
        model(wide)
    assert torch._dynamo.utils.counters["frames"]["total"] > tried[-1]


class Wrong(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x @ torch.ones(7, 2)


class BreaksThenWrong(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        torch._dynamo.graph_break()
        return x @ torch.ones(7, 2)


def test_an_error_of_the_module_is_eagers() -> None:
    torch._dynamo.reset()
    model = ORTModule(Wrong(), QUIET)
    with pytest.raises(RuntimeError, match="cannot be multiplied") as ours:
        model(torch.randn(3, 4))
    with pytest.raises(RuntimeError) as eagers:
        model.module(torch.randn(3, 4))
    assert type(ours.value) is type(eagers.value) and str(ours.value) == str(eagers.value)
    assert not last_run_report(model)["eager_pieces"]


def test_what_has_run_does_not_run_again() -> None:
    torch._dynamo.reset()
    model = ORTModule(BreaksThenWrong(), QUIET)
    with pytest.raises(RuntimeError, match=r"same reduction dim|multipl"):
        model(torch.randn(3, 4))
    assert float(model.seen) == 1


class Noisy(nn.Module):
    """The usual reparametrization: noise of the size of a value with a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.spread = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        spread = self.spread(x).exp()
        noise = torch.randn_like(spread)
        chosen = torch.bernoulli(spread.sigmoid())
        return self.mean(x) + noise * spread * chosen, noise


def test_noise_like_a_value_with_a_gradient() -> None:
    torch._dynamo.reset()
    model = ORTModule(Noisy(), QUIET)
    x = torch.randn(3, 4)
    out, noise = model(x)
    assert not noise.requires_grad and noise.std() > 0
    out.sum().backward()
    assert model.mean.weight.grad is not None and model.spread.weight.grad is not None
    assert last_run_report(model)["compiled"]


UNSAYABLE: dict[str, Callable[[nn.ModuleList, Tensor], Tensor]] = {
    "as_strided": lambda layers, x: torch.as_strided(layers[1](x)[1:], (2, 2), (5, 2), 1).sum() + x,
    "rrelu": lambda layers, x: nn.functional.rrelu(layers[1](x), training=True),
}


@pytest.mark.parametrize("kind", UNSAYABLE)
def test_what_a_functional_graph_cannot_say(kind: str) -> None:
    torch._dynamo.reset()
    model = ORTModule(Layers(UNSAYABLE[kind]), QUIET)
    x = torch.randn(3, 4)
    found = []
    for runner in (model, model.module):
        model.zero_grad()
        torch.manual_seed(0)
        runner(x).sum().backward()
        found.append([None if p.grad is None else p.grad.clone() for p in model.parameters()])
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs)
    (piece,) = last_run_report(model)["eager_pieces"]
    assert f"aten.{kind}" in str(piece)


class Averaged(nn.Module):
    def __init__(self, change: Callable[[Any, Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.fc, self.change = nn.Linear(4, 4), change
        self.avg = nn.Buffer(torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.fc(x).tanh()
        self.change(self, h, x)
        return h * 2


CHANGES: dict[str, Callable[[Any, Tensor, Tensor], Any]] = {
    "is written into an input": lambda m, h, x: setattr(m, "row", m.avg.data.add_(h.sum(0)) * 2),
    "storage of an input are changed": lambda m, h, x: setattr(m.avg, "data", x.detach()[0]),
    "an input that requires a gradient is": lambda m, h, x: m.fc.weight.data.add_(h.sum(0)),
    "where gradients are off": lambda m, h, x: h.data.mul_(2),
}


@pytest.mark.parametrize("reason", CHANGES)
def test_changes_are_left_with_their_line(reason: str) -> None:
    torch._dynamo.reset()
    model = ORTModule(nn.Sequential(Averaged(CHANGES[reason])), QUIET)
    model(torch.randn(3, 4))
    (piece,) = last_run_report(model)["eager_pieces"]
    first = CHANGES[reason].__code__.co_firstlineno
    lines = range(first, first + 3)
    assert reason in piece and any(f"{__file__}:{line})" in piece for line in lines), piece
    assert "(layer 0, " in piece


class Strict(nn.Module):
    """Refuses vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 2:
            raise ValueError("wants rows")
        return self.fc(x)


@pytest.mark.parametrize("make", [Strict, lambda: nn.Sequential(Strict(), nn.ReLU())])
def test_a_forward_that_raised_is_captured_when_it_is_called_well(
    make: Callable[[], nn.Module],
) -> None:
    """Dynamo would leave it to eager for ever, in all modules of the class. Captures are kept."""
    torch._dynamo.reset()
    first = ORTModule(make(), QUIET)
    for _ in range(2):
        with pytest.raises(ValueError, match="wants rows"):
            first(torch.randn(4))
    first(torch.randn(3, 4)).sum().backward()
    with pytest.raises(ValueError, match="wants rows"):
        first(torch.randn(4))
    for model in (first, ORTModule(make(), QUIET)):
        model(torch.randn(3, 4)).sum().backward()
        report = last_run_report(model)
        assert report["compiled"] and not report["eager_pieces"], report
    for i in range(8):
        with pytest.raises(ValueError, match="wants rows"):
            first(torch.randn(4))
        first(torch.randn(3 + i % 3, 4)).sum().backward()
    report = last_run_report(first)
    assert report["compiled"] and report["captures"] <= 2, report["captures"]


class Stops(nn.Module):
    """One of a class whose other instances may stop within the `try`, which Dynamo cannot capture."""

    def __init__(self, stop: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4) / 2)
        self.stop = stop

    def forward(self, x: Tensor) -> Tensor:
        try:
            x = x @ self.weight
            if self.stop and x.sum().item() > 1e9:
                return x
        finally:
            x = x * 2
        return x


def test_what_one_module_leaves_others_of_its_class_do_not() -> None:
    torch._dynamo.reset()
    first, bad = ORTModule(Stops(False), QUIET), ORTModule(Stops(True), QUIET)
    x = torch.randn(3, 4)
    first(x)
    for _ in range(2):
        bad(x)
        captures = last_run_report(first)["captures"]
        forwards = first._compiler.runs
        first(x).sum().backward()
        assert first._compiler.runs == forwards + 1
        assert last_run_report(first)["captures"] == captures
    second, also_bad = ORTModule(Stops(False), QUIET), ORTModule(Stops(True), QUIET)
    for model in (second, also_bad):
        model(x).sum().backward()
    for model in (first, second):
        assert last_run_report(model)["compiled"]
    for model in (bad, also_bad):
        report = last_run_report(model)
        assert not report["compiled"] and len(report["eager_pieces"]) == 1, report


def test_a_module_without_work_leaves_others_of_torch_nn_alone() -> None:
    torch._dynamo.reset()
    x = torch.randn(3, 4)
    idle = ORTModule(nn.Identity(), QUIET)
    assert idle(x) is x and not last_run_report(idle)["eager_pieces"]
    model = ORTModule(nn.Linear(4, 4), QUIET)
    model(x)
    assert last_run_report(model)["compiled"]


def _given_up(model: nn.Module) -> None:
    """As another user of torch.compile makes Dynamo give up this class's code."""
    torch._dynamo.eval_frame.skip_code(type(model).forward.__code__)


def test_a_mark_of_before_the_first_call_is_taken_off() -> None:
    torch._dynamo.reset()
    model = ORTModule(Stops(False), QUIET)
    _given_up(model.module)
    model(torch.randn(3, 4))
    assert last_run_report(model)["compiled"]


def test_a_module_that_runs_wholly_in_eager_is_said(caplog: pytest.LogCaptureFixture) -> None:
    torch._dynamo.reset()
    model = ORTModule(Stops(False), memory_budget="activations:100%")
    model._logger.addHandler(caplog.handler)
    x = torch.randn(3, 4)
    model(x)
    assert last_run_report(model)["compiled"]
    _given_up(model.module)
    try:
        for _ in range(3):
            torch.testing.assert_close(model(x), model.module(x))
    finally:
        torch._dynamo.reset_code(Stops.forward.__code__)
    report = last_run_report(model)
    (piece,) = report["eager_pieces"]
    assert not report["compiled"] and "compiled before" in piece
    assert f"({__file__}:{Stops.forward.__code__.co_firstlineno})" in piece
    (said,) = (r.getMessage() for r in caplog.records if "runs in eager PyTorch" in r.getMessage())
    assert "where memory_budget=activations:100% has no effect" in said and piece in said


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("ORTMODULE_FALLBACK_POLICY", "FALLBACK_DISABLE", "FALLBACK_DISABLE"),
        ("ORTMODULE_FULLGRAPH", "1", "FULLGRAPH|fullgraph"),
    ],
)
def test_a_module_that_may_not_run_in_eager_raises(
    name: str, value: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch._dynamo.reset()
    monkeypatch.setenv(name, value)
    model = ORTModule(Stops(False), QUIET)
    model(torch.randn(3, 4))
    _given_up(model.module)
    try:
        for _ in range(2):
            # torch 2.13 says it itself.
            with pytest.raises(RuntimeError, match=says):
                model(torch.randn(3, 4))
    finally:
        torch._dynamo.reset_code(Stops.forward.__code__)


class Timed(nn.Module):
    """Dynamo fails on the format of a number that it does not know, behind the graph break that the
    clock is."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.calls = 0
        self.took = ""

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        start = time.time()
        y = self.fc(x)
        self.took = f"{time.time() - start:.3f}"
        return y * 2


def test_a_failure_of_dynamo_behind_a_break_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    model = ORTModule(Timed(), QUIET)
    x = torch.randn(3, 4)
    for step in range(3):
        torch.testing.assert_close(model(x), model.fc(x) * 2)
        assert model.calls == step + 1 and float(model.took) >= 0
    report = last_run_report(model)
    (piece,) = report["eager_pieces"]
    assert piece.startswith("the rest of forward behind line ") and __file__ in piece, piece
    assert "Dynamo" in piece and "Error" not in piece and not report["compiled"]
    monkeypatch.setenv("ORTMODULE_FALLBACK_POLICY", "FALLBACK_DISABLE")
    with pytest.raises(ORTModuleError, match="FALLBACK_DISABLE"):
        ORTModule(Timed(), QUIET)(x)
    monkeypatch.setenv("ORTMODULE_FULLGRAPH", "1")
    with pytest.raises(torch._dynamo.exc.Unsupported):
        ORTModule(Timed(), QUIET)(x)


def test_a_budget_that_fails_behind_a_break_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Breaks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            y = x * 2
            torch._dynamo.graph_break()
            return self.fc(y).tanh()

    torch._dynamo.reset()
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_STRICT", "1")
    model = ORTModule(Breaks(), QUIET, memory_budget="activations:1%")
    with pytest.raises(ORTModuleError, match="memory"):
        model(torch.randn(3, 4))


class Reads(nn.Module):
    """Breaks the graph, as it reads a number from a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        return y * (1 if y.sum().item() > -1e9 else 2)


class Result:
    """An output that refers to itself."""

    def __init__(self, out: Tensor) -> None:
        self.out = out
        self.parts = [self]


class Contains(nn.Module):
    """The loop runs in Python for the break within it, and with it what is no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 4)
        self.unused = nn.Linear(4, 4)
        self.block = nn.ModuleDict({"seq": nn.Sequential(nn.Linear(4, 4), Reads(), nn.ReLU())})
        self.weights = nn.ParameterList(torch.randn(4, 4) for _ in range(2))

    def forward(self, x: Tensor) -> Result:
        x = self.block["seq"](self.head(x).sigmoid())
        for weight in self.weights:
            x = x @ weight
            torch._dynamo.graph_break()
        return Result(x)


def test_layers_that_run_in_eager_are_said() -> None:
    torch._dynamo.reset()
    model = ORTModule(Contains(), QUIET)
    x = torch.randn(3, 4)
    for _ in range(3):
        torch.testing.assert_close(model(x).out, model.module(x).out)
    report = last_run_report(model)
    (piece,) = report["eager_pieces"]
    assert not report["compiled"] and report["captures"] > 1
    assert piece.startswith("2 of 10 parameters") and piece.endswith(": weights"), piece


def test_a_forward_without_a_break_may_have_parameters_that_it_does_not_use() -> None:
    torch._dynamo.reset()
    model = ORTModule(Layers(lambda layers, x: layers[1](x)), QUIET)
    model(torch.randn(3, 4)).sum().backward()
    assert last_run_report(model)["compiled"]


class Halves(nn.Module):
    """A graph break in its midst, so that all instances share their two pieces."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.out = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc(x).tanh()
        torch._dynamo.graph_break()
        return self.out(x).tanh()


def test_pieces_that_run_with_other_parameters() -> None:
    """All parameters are in a piece, though it runs once for each of the blocks."""
    torch._dynamo.reset()
    model = ORTModule(nn.Sequential(*(Halves() for _ in range(3))), QUIET)
    for _ in range(2):
        model(torch.randn(3, 4)).sum().backward()
    report = last_run_report(model)
    assert not report["eager_pieces"] and report["graph_breaks"], report
    assert all(parameter.grad is not None for parameter in model.parameters())


class Prepared(nn.Module):
    """Its first call does in a `try` what no graph holds."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.ready = nn.Linear(4, 4), False

    def forward(self, x: Tensor) -> Tensor:
        if not self.ready:
            self.prepare()
        y: Tensor = self.fc(x).tanh()
        return y

    def prepare(self) -> None:
        try:
            torch._dynamo.graph_break()
        finally:
            self.ready = False


def test_the_report_judges_by_the_last_forward() -> None:
    torch._dynamo.reset()
    model, x = ORTModule(Prepared(), QUIET), torch.ones(3, 4)
    found = []
    for ready in (False, True, True, False, True):
        model.ready = ready
        model(x).sum().backward()
        report = last_run_report(model)
        found.append(report["compiled"])
        assert len(report["eager_pieces"]) == 1  # said for good
    assert found == [False, True, True, False, True]
    with torch.nn.modules.module.register_module_forward_hook(lambda *_: None):
        model(x)
    assert not last_run_report(model)["compiled"]
    model(x)
    assert last_run_report(model)["compiled"]
    model.module.register_forward_hook(lambda *_: torch._dynamo.graph_break())
    model(x)
    assert not last_run_report(model)["compiled"]
