"""One budget for a module of several pieces."""

from __future__ import annotations

import json
import re

import pytest
import torch
from torch import Tensor, nn

from ortmodule_py import _C, DebugOptions, LogLevel, ORTModule, explain, last_run_report
from ortmodule_py.testing import install_counting_allocator, measure_peak

WIDTH = 64


def _blocks() -> nn.Sequential:
    return nn.Sequential(
        *[
            nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
            for _ in range(3)
        ]
    )


class _Broken(nn.Module):
    """Three pieces of three blocks each."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(_blocks() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.parts[0](x)
        torch._dynamo.graph_break()
        x = self.parts[1](x)
        torch._dynamo.graph_break()
        return self.parts[2](x).sum()


def _step_peak(model: nn.Module, x: Tensor) -> int:
    """Most bytes above idle during forward and backward, counted over the whole process."""
    model.zero_grad()
    model(x).backward()
    model.zero_grad()
    install_counting_allocator()
    with measure_peak() as measured:
        model(x).backward()
    return measured.peak_above_start


def test_the_peak_that_is_said_is_that_of_all_pieces() -> None:
    model = ORTModule(_Broken(), DebugOptions(log_level=LogLevel.ERROR))
    x = torch.randn(1024, WIDTH)
    counted = _step_peak(model, x)
    report = last_run_report(model)
    assert report["pieces_run"] == 3
    assert report["planned_peak_bytes"] == report["measured_peak_bytes"]
    assert abs(counted - report["planned_peak_bytes"]) <= 1024
    told = explain(model)
    assert told.peak_bytes == told.unoptimized_peak_bytes == report["planned_peak_bytes"]
    assert max(piece["peak_bytes"] for piece in told.pieces) < told.peak_bytes
    assert {item["piece"] for item in told.decisions} == {1, 2, 3}
    assert sum(piece["saved_bytes"] for piece in told.pieces) == report["saved_bytes"]
    text = str(told)
    for n in (1, 2, 3):
        assert f"Piece {n} of 3: peak " in text
        assert f"Values that backward needs, piece {n} of 3:" in text
    assert f"Largest tensors at the peak, piece {told.peak_piece} of 3" in text
    assert len(json.loads(told.to_json())["pieces"]) == 3


class Twice(nn.Module):
    """One capture that runs three times in a forward."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = _blocks()

    def forward(self, x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return self.part(self.part(self.part(x))).sum()

    @torch._dynamo.disable(recursive=False)
    def part(self, x: Tensor) -> Tensor:
        return self.blocks(x)


def test_a_piece_that_runs_twice_is_counted_twice() -> None:
    model = ORTModule(Twice(), DebugOptions(log_level=LogLevel.ERROR))
    counted = _step_peak(model, torch.randn(1024, WIDTH))
    runs = [piece["runs"] for piece in explain(model).pieces]
    assert sum(runs) == last_run_report(model)["pieces_run"] > len(runs)
    planned = last_run_report(model)["planned_peak_bytes"]
    assert 0.95 * counted <= planned <= 1.05 * counted


@pytest.mark.slow
def test_pieces_share_a_budget(capsys: pytest.CaptureFixture[str]) -> None:
    x = torch.randn(1024, WIDTH)
    plain = ORTModule(_Broken())
    whole = _step_peak(plain, x)
    budget = int(0.8 * whole)
    model = ORTModule(_Broken(), memory_budget=f"activations:{budget}")
    model.load_state_dict(plain.state_dict())
    assert _step_peak(model, x) <= budget < whole
    for ours, eager in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours.grad, eager.grad)  # type: ignore[arg-type]
    assert "memory budget" not in capsys.readouterr().err


@pytest.mark.slow
def test_what_does_not_fit_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(256, WIDTH)
    plain = ORTModule(_Broken())
    budget = int(0.4 * _step_peak(plain, x))
    model = ORTModule(_Broken(), memory_budget=f"activations:{budget}")
    for _ in range(2):
        model(x).backward()
    assert capsys.readouterr().err.count("memory budget") == 1
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_STRICT", "1")
    with pytest.raises(_C.ORTModuleError, match=r"(?s)memory budget.*must fit"):
        ORTModule(_Broken(), memory_budget=f"activations:{budget}")(x)


@pytest.mark.slow
def test_a_piece_that_runs_several_times_shares_the_budget_with_itself() -> None:
    x = torch.randn(1024, WIDTH)
    plain = ORTModule(Twice(), DebugOptions(log_level=LogLevel.ERROR))
    whole = _step_peak(plain, x)
    budget = int(0.75 * whole)
    model = ORTModule(
        Twice(), DebugOptions(log_level=LogLevel.ERROR), memory_budget=f"activations:{budget}"
    )
    assert _step_peak(model, x) <= 1.05 * budget < whole


def test_pieces_share_a_large_budget_over_larger_shapes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_STRICT", "1")
    model = ORTModule(_Broken(), memory_budget="activations:10GiB")
    for rows in (8, 8, 2048):
        model(torch.randn(rows, WIDTH)).backward()
    assert all(
        piece["peak_bytes"] == piece["unoptimized_peak_bytes"] for piece in explain(model).pieces
    )
    assert "memory budget" not in capsys.readouterr().err


class Small(nn.Module):
    """Two pieces."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).tanh()
        torch._dynamo.graph_break()
        return self.second(x).tanh().sum()


@pytest.mark.parametrize("budget", ["activations:2000", "4KiB"])
def test_a_budget_that_later_shapes_exceed_is_said_once(
    budget: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In bytes of the user's own budget, not of a piece's share of it."""
    torch._dynamo.reset()
    model = ORTModule(Small(), memory_budget=budget)
    for rows in (4, 6, 40, 60, 80, 100):
        model(torch.randn(rows, 8)).backward()
    lines = capsys.readouterr().err.splitlines()
    (said,) = (line for line in lines if "memory budget]" in line)
    allowed = 2000 if "activations" in budget else 4096
    found = re.search(r"must fit (\d+) bytes.* takes (\d+) .* budget of at least (\d+) bytes", said)
    assert found is not None, said
    must_fit, takes, least = map(int, found.groups())
    assert must_fit == allowed < takes == least, said
    assert ("optimizer state" in said) == (budget == "4KiB") and "fewer graph breaks" in said


def test_a_budget_below_the_bytes_of_parameters_is_named() -> None:
    with pytest.raises(_C.ORTModuleError, match="must fit 10 bytes, but found that it takes at le"):
        ORTModule(Small(), memory_budget=10)(torch.randn(4, 8))


class Tail(nn.Module):
    """The caller keeps what the last piece returns while the first one runs backward."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = _blocks()
        self.head = nn.Linear(WIDTH, 16 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(x)
        torch._dynamo.graph_break()
        return self.head(x)


def test_outputs_of_the_last_piece_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_LEVEL", "1")
    model = ORTModule(Tail(), DebugOptions(log_level=LogLevel.ERROR))
    x = torch.randn(1024, WIDTH)
    gradient = torch.randn(1024, 16 * WIDTH)
    install_counting_allocator()
    for _ in range(2):
        model.zero_grad()
        with measure_peak() as measured:
            out = model(x)
            out.backward(gradient)
        del out
    planned = last_run_report(model)["planned_peak_bytes"]
    assert abs(planned - measured.peak_above_start) <= 0.04 * planned
