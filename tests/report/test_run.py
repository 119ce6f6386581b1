"""The banner of the first step, and `last_run_report`."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ortmodule_py import ORTModule, last_run_report
from ortmodule_py.report.run import banner
from tests.semantics import QUIET


def export_seconds(model: ORTModule, mode: str) -> float:
    """What the banner of `mode` says that export takes."""
    (line,) = (
        line for line in banner(model._compiler, model.module, mode, 0.0) if "export" in line
    )
    found = re.search(r"export takes ([\d.]+)s", line)
    assert found is not None, line
    return float(found[1])


def test_export_time_covers_every_stage_of_capture() -> None:
    """Traced gradients included: they may take longer than all other stages."""

    class Traced(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.special.i0e(super().forward(x)).sum()

    model = ORTModule(Traced(4, 4), QUIET)
    model(torch.randn(3, 4)).backward()
    (piece,) = model._compiler.pieces
    assert piece.traced_gradients and piece.seconds["gradients"] > 0.0
    for stage in set(piece.seconds) - {"compile"}:
        before = export_seconds(model, "training")
        piece.seconds[stage] += 100.0
        assert abs(export_seconds(model, "training") - before - 100.0) < 0.02, stage


def test_export_time_of_a_mode_leaves_out_the_captures_of_the_other() -> None:
    """The first step in it would take less than its parts otherwise."""
    model, x = ORTModule(torch.nn.Linear(4, 4), QUIET), torch.randn(3, 4)
    model(x)
    (trained,) = model._compiler.pieces
    trained.seconds["trace"] = 100.0
    model.eval()
    with torch.no_grad():
        model(x)
    assert export_seconds(model, "evaluation") < 100.0 <= export_seconds(model, "training")


class Halves(nn.Module):
    """Two layers of equal size; `break_in` names the mode in which the second one runs in eager PyTorch."""

    def __init__(self, break_in: str) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)
        self.break_in = break_in

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.break_in == ("training" if self.training else "evaluation"):
            return self.left(x)
        return self.second(x)

    def left(self, x: Tensor) -> Tensor:
        try:
            torch._dynamo.graph_break()
            x = torch.nn.functional.linear(x, self.second.weight, self.second.bias)
        finally:
            x = x * 1
        return x


@pytest.mark.parametrize("broken", ["training", "evaluation"])
def test_training_and_evaluation_are_reported_apart(broken: str) -> None:
    torch._dynamo.reset()
    model, x = ORTModule(Halves(broken), QUIET), torch.randn(8, 64)
    other = ({"training", "evaluation"} - {broken}).pop()
    assert last_run_report(model)[broken] is None and not last_run_report(model)["compiled"]
    for mode in (broken, other, broken, other):
        model.train(mode == "training")
        with torch.set_grad_enabled(mode == "training"):
            model(x)
        report = last_run_report(model)
        assert not report["compiled"] and not report[broken]["compiled"], mode
    assert report[other]["compiled"] and report[other]["eager_pieces"] == []
    assert any("the function left" in piece for piece in report[broken]["eager_pieces"])
    assert report[other]["parameter_share"] == 1.0 and report[broken]["parameter_share"] == 0.5
    assert 0.0 < report[broken]["time_share"] < 1.0 and 0.0 < report[other]["time_share"] < 1.0
    assert report[other]["pieces_run"] == report[broken]["pieces_run"] == 1


def test_the_time_of_captures_is_in_no_share() -> None:
    torch._dynamo.reset()
    model = ORTModule(nn.Linear(4, 4), QUIET)
    model(torch.randn(3, 4))
    assert last_run_report(model)["training"]["time_share"] is None
    model(torch.randn(3, 4))
    assert last_run_report(model)["training"]["time_share"] > 0.0


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc = nn.Linear(4, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x).relu()


class LeftToEager(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[1:].as_strided((2, 2), (4, 1)) * 2


def test_the_banner_comes_once_for_a_class(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container of torch.nn is of the class of its layers; other options are news."""

    def banners(module: nn.Module) -> int:
        model = ORTModule(module)
        model(torch.randn(3, 4)).sum().backward()
        text = capsys.readouterr().err
        assert "0.0 MiB" not in text and (not text or re.search(r"peak +: [\d.]+ KiB", text)), text
        return text.count("*****") // 2

    torch._dynamo.reset()
    assert [banners(Block(width)) for width in (4, 4, 8)] == [1, 0, 0]
    assert banners(nn.Sequential(Block(4))) == 1
    assert [banners(nn.Sequential(nn.Linear(4, 4))) for _ in range(2)] == [1, 0]
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_LEVEL", "1")
    assert banners(Block(4)) == 1
    monkeypatch.setenv("ORTMODULE_LOG_LEVEL", "INFO")
    assert banners(Block(4)) == 1


def test_no_banner_says_that_the_engine_runs_what_it_does_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    torch._dynamo.reset()
    ORTModule(LeftToEager())(torch.randn(3, 4, requires_grad=True) * 1)
    assert "*****" not in capsys.readouterr().err
    model = ORTModule(Halves("training"))
    model(torch.randn(3, 64)).sum().backward()
    text = capsys.readouterr().err
    assert "runs a part of your model [training mode]" in text
    assert "1 piece compiled with 50% of the parameters, 2 in eager PyTorch" in text


class OtherFirstStep(nn.Linear):
    """Its first step has an operator that is left to eager PyTorch."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.register_buffer("ready", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        if self.ready == 0:
            x = torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))
            self.ready.fill_(1)
        return super().forward(x)


@pytest.mark.parametrize(
    "make", [OtherFirstStep, lambda: nn.Sequential(OtherFirstStep(), nn.Tanh())]
)
def test_a_step_in_eager_counts_until_the_whole_module_is_compiled(make: Any) -> None:
    """Also where the forward is that of a class of torch's, around which Dynamo puts a frame of its own."""
    model = ORTModule(make(), QUIET)
    found = []
    for _ in range(2):
        model(torch.ones(3, 4)).sum().backward()
        found.append(last_run_report(model)["compiled"])
    assert found == [False, True]
