"""The table of plans: what is shown when, and that its numbers are true."""

from __future__ import annotations

import re

import pytest
import torch

from ortmodule_py import DebugOptions, LogLevel, ORTModule
from ortmodule_py.report.plan_table import (
    step_pieces,
    step_rows,
    symbol_names,
    symbolic_text,
)
from tests.small_models import make


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LEVEL", "CONFIG", "BUDGET", "STRICT"):
        monkeypatch.delenv(f"ORTMODULE_MEMORY_OPT_{name}", raising=False)


def printed(capfd: pytest.CaptureFixture[str], level: LogLevel = LogLevel.WARNING) -> str:
    module, batch = make("bert", layers=2)
    model = ORTModule(module, DebugOptions(log_level=level))
    capfd.readouterr()
    for _ in range(2):
        model(**batch).backward()
    return capfd.readouterr().err


def test_symbols_of_nested_arguments_are_names(capfd: pytest.CaptureFixture[str]) -> None:
    class Nested(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.Sigmoid())

        def forward(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
            return self.layers(inputs["x-ray"]).square().sum()

    model = ORTModule(Nested(), DebugOptions(log_level=LogLevel.INFO))
    for size in (6, 7, 9):  # from the second one on they are symbols
        x = torch.randn(2, 1, size, size + 1)
        torch._dynamo.maybe_mark_dynamic(x, 2)
        torch._dynamo.maybe_mark_dynamic(x, 3)
        model({"x-ray": x}).backward()
    text = capfd.readouterr().err
    assert "batch=2, inputs_x_ray_dim2=6, inputs_x_ray_dim3=7" in text
    assert any("inputs_x_ray_dim2" in line for line in plans(text))


def plans(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(" - Plan ")]


@pytest.mark.slow
def test_five_rows_by_default_and_all_at_info(capfd: pytest.CaptureFixture[str]) -> None:
    text = printed(capfd)
    assert len(plans(text)) == 5
    assert all(re.match(r" - Plan \d+ +:  OFF  :  \S+:[12]:-1 ", line) for line in plans(text))
    assert re.search(r"^Memory Optimizer     :  OFF  :  Enable with env ", text, re.M)
    assert len(text.splitlines()) <= 30
    assert len(plans(printed(capfd, LogLevel.INFO))) > 5
    assert printed(capfd, LogLevel.ERROR) == ""


@pytest.mark.slow
def test_config_rows_are_on(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_CONFIG", "BiasGelu+:1:2")
    text = printed(capfd)
    on = [line for line in plans(text) if ":  ON   :" in line]
    assert len(on) == 1 and "BiasGelu+:1:2" in on[0]
    assert "Memory Optimization Level: [USER_SPECIFIED]" in text
    assert "Optimization Config: [BiasGelu+:1:2]" in text


def test_a_gain_that_new_gradients_hide_is_named(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_LEVEL", "1")
    layers = (torch.nn.Linear(10, 10), torch.nn.ReLU(), torch.nn.Linear(10, 10))
    ORTModule(torch.nn.Sequential(*layers))(torch.randn(3, 10, requires_grad=True)).sum().backward()
    text = capfd.readouterr().err
    found = re.search(r"adding to gradients ([\d,]+) -> ([\d,]+) bytes", text)
    assert found, text
    before, after = (int(figure.replace(",", "")) for figure in found.groups())
    assert after < before


@pytest.mark.slow
def test_levels_and_budgets_are_named(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_LEVEL", "1")
    text = printed(capfd)
    assert re.search(r"Memory Optimizer     :  ON   :  .*\[TRANSFORMER_LAYERWISE_RECOMPUTE\]", text)
    assert "layers: 2" in text
    assert any(":  ON   :" in line for line in plans(text))
    monkeypatch.delenv("ORTMODULE_MEMORY_OPT_LEVEL")
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_BUDGET", "activations:80%")
    assert "Memory Budget: [activations:80%]" in printed(capfd)


@pytest.mark.slow
def test_unknown_ids_are_warned_about_with_the_nearest(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_CONFIG", "BiasGelu2+:1:-1")
    text = printed(capfd)
    assert text.count("'BiasGelu2+:1' matches no plan of this model; the nearest are") == 1
    assert "BiasGelu+:1" in text


@pytest.mark.slow
def test_symbols_evaluate_to_the_bytes() -> None:
    module, batch = make("bert", layers=1, batch=3, length=24)
    model = ORTModule(module, DebugOptions(log_level=LogLevel.ERROR))
    model(**batch).backward()
    piece = model._compiler.pieces[0].compiled
    facts = piece.memory()
    names = symbol_names(facts)
    values = {names[symbol]: value for symbol, value in facts["sizes"].items()}
    assert values["batch"] == 3 and values["seq_len"] == 24
    for row in facts["rows"]:
        text = symbolic_text(row["saving"], names)
        assert eval(text, {}, values) == row["saving_bytes"], text


def test_symbolic_form() -> None:
    names = {"s0": "batch", "s1": "seq_len"}
    assert symbolic_text("128*s0*s1*s1", names) == "128.0*batch*seq_len**2"
    assert symbolic_text("64*s0*s1*s1 - 64*s0*s1", names) == "64.0*batch*seq_len*(seq_len - 1)"
    assert symbolic_text("4096", names) == "4096.0"
    assert symbolic_text("s1//2*s0", names) == "1.0*(seq_len//2*batch)"


@pytest.mark.slow
def test_devinfo_prints_the_node_level_table(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = printed(capfd, LogLevel.DEVINFO)
    assert "MemoryInsight Summary - User config file path: not provided" in text
    assert ">>Option 1     : Recompute subgraph BiasGelu+" in text
    assert "  Status       : Disabled." in text
    assert re.search(
        r"- Output 0  : \[\(\(batch\)\*\(seq_len\)\*\(128\)\)\], byte/elem: 4, 100%", text
    )
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_CONFIG", "BiasGelu+:1:2")
    assert "Enabled, requested count=2, actual applied count=2." in printed(capfd, LogLevel.DEVINFO)


@pytest.mark.slow
def test_memory_line_survives_unusual_orders(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORTMODULE_PRINT_MEMORY_STATS", "1")
    module, batch = make("gpt", layers=1)
    model = ORTModule(module)
    first, second = model(**batch), model(**batch)
    second.backward()
    first.backward(retain_graph=True)
    first.backward()
    model(**batch)
    with torch.no_grad():
        model(**batch)
    text = capfd.readouterr().err
    lines = [line for line in text.splitlines() if "memory (MiB) | phase:" in line]
    phases = [re.search(r"phase: (\w+)", line) for line in lines]
    named = [match[1] for match in phases if match]
    assert named.count("pre_forward") == named.count("post_forward") == 4
    assert named.count("pre_backward") == named.count("post_backward") == 3
    assert lines[0].startswith("rank-0 step 0 memory (MiB) | phase: pre_forward | allocated: ")


@pytest.mark.slow
def test_memory_line_thins_out(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORTMODULE_PRINT_MEMORY_STATS", "1")
    model = ORTModule(torch.nn.Linear(4, 4))
    for _ in range(32):
        model(torch.randn(2, 4)).sum().backward()
    lines = [line for line in capfd.readouterr().err.splitlines() if "| phase: " in line]
    assert len(lines) == 11 * 4


class Parted(torch.nn.Module):
    """Pieces with different plans, which graph breaks part."""

    def __init__(self, layer: torch.nn.Module, *others: torch.nn.Module) -> None:
        super().__init__()
        self.part = torch.nn.Sequential(torch.nn.Linear(8, 32), layer, torch.nn.Linear(32, 8))
        self.rest = Parted(*others) if others else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.part(x)
        torch._dynamo.graph_break()
        return x.square().mean() if self.rest is None else self.rest(x)


def test_all_pieces_are_in_the_table(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "ORTMODULE_MEMORY_OPT_CONFIG", "LayerNormalization+:1:-1,Gelu+:1:1,Nothing+:1:-1"
    )
    model = ORTModule(Parted(torch.nn.GELU(), torch.nn.LayerNorm(32)))
    model(torch.randn(16, 8)).backward()
    text = capfd.readouterr().err
    assert re.findall(r"^Piece (\d+) of 3, ", text, re.M) == ["1", "2", "3"]
    assert text.count("matches no plan") == 1 and "'Nothing+:1' matches no plan" in text
    rows = step_rows(step_pieces(model._compiler), model._engine_options.memory)
    shown = [" ON " in line for line in plans(text)]
    assert shown == [row["on"] for row in rows]
    assert [line.split()[2] for line in plans(text)] == [str(row["number"]) for row in rows]
    assert [(row["config"], row["piece"]) for row in rows if row["on"]] == [
        ("Gelu+:1:1", 1),
        ("LayerNormalization+:1:-1", 2),
    ]


def test_of_many_pieces_the_largest_are_shown(capfd: pytest.CaptureFixture[str]) -> None:
    layers = [torch.nn.GELU(), torch.nn.Sigmoid(), torch.nn.Tanh(), torch.nn.SiLU()]
    model = ORTModule(Parted(*layers))
    model(torch.randn(16, 8)).backward()
    text = capfd.readouterr().err
    assert "(2 more pieces at log level INFO)" in text
    assert len(re.findall(r"^Piece \d of 5, ", text, re.M)) == 3
