"""What the memory optimizer may be asked, and one clear sentence for everything else."""

from __future__ import annotations

import os
import traceback
from pathlib import Path

import pytest
from torch import nn

from ortmodule_py import ORTModule
from ortmodule_py.options.memory import MemoryRequest, parse_budget, parse_config
from tests import fresh_process

LEVEL = "ORTMODULE_MEMORY_OPT_LEVEL"
CONFIG = "ORTMODULE_MEMORY_OPT_CONFIG"
BUDGET = "ORTMODULE_MEMORY_OPT_BUDGET"

# variable, value, what the message must name
BAD = [
    (LEVEL, "3", "'3'"),
    (LEVEL, "-1", "'-1'"),
    (LEVEL, "one", "'one'"),
    (LEVEL, "1.0", "'1.0'"),
    (LEVEL, "01", "'01'"),
    (CONFIG, "BiasGelu+", "'BiasGelu+'"),
    (CONFIG, "BiasGelu+:1", "2 parts"),
    (CONFIG, "BiasGelu+:1:1:1", "4 parts"),
    (CONFIG, "BiasGelu+:4:-1", "'4'"),
    (CONFIG, "BiasGelu+:x:-1", "'x'"),
    (CONFIG, "BiasGelu+:-1:-1", "'-1'"),
    (CONFIG, "BiasGelu+:1:-2", "'-2'"),
    (CONFIG, "BiasGelu+:1:1abc", "'1abc'"),
    (CONFIG, "BiasGelu+:1:1.5", "'1.5'"),
    (CONFIG, "BiasGelu+:1:", "''"),
    (CONFIG, "BiasGelu:1:-1", "'BiasGelu'"),
    (CONFIG, "+:1:-1", "'+'"),
    (CONFIG, ":1:-1", "''"),
    (CONFIG, "Bias Gelu+:1:-1", "'Bias Gelu+'"),
    (CONFIG, "BiasGelu+:1:-1,,Cast+:1:-1", "1 parts"),
    (CONFIG, "BiasGelu+:1:-1,Cast+:9:-1", "'Cast+:9:-1'"),
    (CONFIG, "missing.json", "'missing.json'"),
    (CONFIG, "no/such/folder/mem_opt.json", "No such file"),
    (CONFIG, "x" * 300, "File name too long"),
    (CONFIG, "~no-such-user/mem_opt.json", "home directory"),
    (CONFIG, "[1, 2]", "1"),
    (CONFIG, '["BiasGelu+:1:-1"', "JSON"),
    (
        CONFIG,
        '[["BiasGelu+:1:-1"]]',
        "list of strings as in [\"BiasGelu+:1:-1\"], but found ['BiasGelu+:1:-1']",
    ),
    (BUDGET, "lots", "'lots'"),
    (BUDGET, "10XB", "'XB'"),
    (BUDGET, "-5GB", "'-5GB'"),
    (BUDGET, "0", "positive"),
    (BUDGET, "50%", "activations:50%"),
    (BUDGET, "activations:", "'activations:'"),
    (BUDGET, "activations:-3%", "'activations:-3%'"),
    ("ORTMODULE_MEMORY_OPT_STRICT", "yes", "'yes'"),
]


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith("ORTMODULE_MEMORY"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("variable", "value", "named"), BAD)
def test_bad_values_fail_at_construction(
    variable: str, value: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ValueError) as caught:
        ORTModule(nn.Linear(2, 2))
    text = str(caught.value)
    assert text.startswith(f"[{variable}]")
    assert named in text
    assert len(text.splitlines()) == 1
    assert "but found" in text or "must be" in text
    # What Python prints of it, without the places: no second error that was its cause.
    printed = traceback.format_exception(caught.type, caught.value, None)
    assert len("".join(printed).strip().splitlines()) == 1


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{}",
        '"BiasGelu+:1:-1"',
        "null",
        "BiasGelu+:1:-1",
        "[",
        '[{"id": "BiasGelu+"}]',
        "[null]",
    ],
)
def test_bad_files_fail_at_construction(content: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("mem_opt.json").write_text(content)
    monkeypatch.setenv(CONFIG, "mem_opt.json")
    with pytest.raises(ValueError, match=r"^\[ORTMODULE_MEMORY_OPT_CONFIG\].*mem_opt.json"):
        ORTModule(nn.Linear(2, 2))


@pytest.mark.slow
def test_a_bad_value_ends_a_script_with_its_line() -> None:
    script = (
        "import sys\nfrom torch import nn\nfrom ortmodule_py import ORTModule\n"
        "sys.tracebacklimit = 0\nORTModule(nn.Linear(2, 2))\n"
    )
    done = fresh_process.run(script, **{CONFIG: "no/such/folder/mem_opt.json"})
    assert done.returncode == 1
    assert f"[{CONFIG}]" in done.stderr and "No such file" in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 3


def test_forms_of_a_config() -> None:
    Path("mem_opt.json").write_text('["BiasGelu+:1:1", "Dropout+:1:-1,Cast+:2:-1"]')
    wanted = ["BiasGelu+:1:1", "Dropout+:1:-1", "Cast+:2:-1"]
    assert [str(e) for e in parse_config("mem_opt.json")] == wanted
    assert [str(e) for e in parse_config("BiasGelu+:1:1,Dropout+:1:-1, Cast+:2:-1")] == wanted
    assert [
        str(e) for e in parse_config('["BiasGelu+:1:1","Dropout+:1:-1","Cast+:2:-1"]')
    ] == wanted
    assert [str(e) for e in parse_config("Reshape+Where+:1:-1")] == ["Reshape+Where+:1:-1"]
    assert parse_config("[]") == []
    many = ["FusedMatMul+Add+Transpose+SkipLayerNormalization+:1:-1"] * 200  # no path is as long
    assert [str(e) for e in parse_config(",".join(many))] == many


def test_a_config_may_begin_with_a_byte_order_mark() -> None:
    Path("mem_opt.json").write_text('["BiasGelu+:1:1"]', encoding="utf-8-sig")
    assert [str(e) for e in parse_config("mem_opt.json")] == ["BiasGelu+:1:1"]


def test_a_config_of_lists_in_lists_is_refused() -> None:
    Path("mem_opt.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match="must hold a JSON list of strings"):
        parse_config("mem_opt.json")


@pytest.mark.parametrize("budget", ["9999999999999GiB", "activations:" + "9" * 400])
def test_a_budget_that_no_machine_counts_is_refused(budget: str) -> None:
    with pytest.raises(ValueError, match="must be below 2\\^63 bytes"):
        parse_budget(budget)


def test_forms_of_a_budget() -> None:
    assert parse_budget("20GiB").total_bytes == 20 * 2**30
    assert parse_budget(12345).total_bytes == 12345
    assert parse_budget("activations:900MB").activation_bytes == 900 * 10**6
    assert parse_budget("activations: 1.5 kib").activation_bytes == 1536
    assert parse_budget("activations:60%").activation_fraction == 0.6


def test_level_beats_config_with_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LEVEL, "1")
    monkeypatch.setenv(CONFIG, "BiasGelu+:1:-1")
    request = MemoryRequest.from_environment()
    assert request.config == [] and len(request.warnings) == 1
    assert CONFIG in request.warnings[0] and LEVEL in request.warnings[0]


def test_budget_excludes_levels_and_configs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LEVEL, "2")
    with pytest.raises(ValueError, match="a budget chooses the plan itself"):
        ORTModule(nn.Linear(2, 2), memory_budget="1GiB")
    monkeypatch.setenv(LEVEL, "0")
    monkeypatch.setenv(CONFIG, "BiasGelu+:1:-1")
    with pytest.raises(ValueError, match="only elements of strategy 0"):
        ORTModule(nn.Linear(2, 2), memory_budget="1GiB")
    monkeypatch.setenv(CONFIG, "BiasGelu+:0:-1")
    ORTModule(nn.Linear(2, 2), memory_budget="1GiB")


def test_the_argument_wins_over_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BUDGET, "1GiB")
    request = MemoryRequest.from_environment("2GiB")
    assert request.budget is not None and request.budget.total_bytes == 2 * 2**30
