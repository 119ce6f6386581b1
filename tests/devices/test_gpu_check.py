"""tools/gpu_check on a machine without a GPU: what it says, and that it goes on where it stopped."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch

from ortmodule_py import _C
from tools.gpu_check import __main__ as gpu_check
from tools.gpu_check import operators
from tools.gpu_check.part import Context, Part

without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")


@without_gpu
def test_it_says_what_it_would_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert gpu_check.main(["speed", "budgets", "--results", str(tmp_path / "results.json")]) == 0
    said = capsys.readouterr().out
    assert "no GPU was found; on one this would run:" in said
    assert "speed        5 rows  steps of large models" in said
    assert "budgets      6 rows  predicted against measured peak at 8 budgets" in said
    assert "ops" not in said.split()


def test_an_unknown_part_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        gpu_check.main(["sped"])
    assert "there is no part sped; there are ops, parity" in capsys.readouterr().err


def _part(calls: list[str]) -> Part:
    def run(name: str, _: Context) -> dict[str, object]:
        calls.append(name)
        if name == "breaks":
            raise RuntimeError("it broke\nsecond line")
        return {"ok": True, "why": "", "figure": 1.5}

    return Part("numbers", "numbers", lambda: ["one", "breaks", "three"], run)


def _context() -> Context:
    return Context(torch.device("cpu"), emulated=True)


def test_it_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    part = _part(calls)
    path = tmp_path / "results.json"
    results = {"machine": {}, "parts": {}}
    assert gpu_check._run_part(part, _context(), results, path)
    assert calls == ["one", "breaks", "three"]
    written = json.loads(path.read_text())["parts"]["numbers"]
    assert written["one"]["ok"] and written["one"]["figure"] == 1.5
    assert not written["breaks"]["ok"]
    assert written["breaks"]["why"] == "RuntimeError: it broke"
    # What failed runs again, behind what never ran.
    del results["parts"]["numbers"]["three"]
    gpu_check._run_part(part, _context(), results, path)
    assert calls[3:] == ["three", "breaks"]
    # Out of time: what is left stays for the next run, and the table says so.
    monkeypatch.setattr(gpu_check, "PART_SECONDS", 0)
    monkeypatch.setattr(gpu_check, "PARTS", (part,))
    results["parts"]["numbers"].pop("one")
    gpu_check._run_part(part, _context(), results, path)
    assert "one" not in results["parts"]["numbers"]
    assert gpu_check._table(results) == 2  # one is missing, one is wrong


def test_no_row_begins_that_may_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(gpu_check, "PART_SECONDS", 100)
    known = {"earlier": {"ok": True, "why": "", "seconds": 101.0}}
    results = {"machine": {}, "parts": {"numbers": known}}
    # One row at least, or nothing would ever be done.
    gpu_check._run_part(_part(calls), _context(), results, tmp_path / "results.json")
    assert calls == ["one"]


def test_a_row_that_ends_the_process_is_noted_and_not_run_for_ever(tmp_path: Path) -> None:
    def ends(_: str, __: Context) -> dict[str, object]:
        raise SystemExit

    part = Part("numbers", "numbers", lambda: ["ends"], ends)
    path = tmp_path / "results.json"
    results = {"machine": {}, "parts": {}}
    for _ in range(2):
        with pytest.raises(SystemExit):
            gpu_check._run_part(part, _context(), results, path)
        results = json.loads(path.read_text())
    gpu_check._run_part(part, _context(), results, path)
    row = results["parts"]["numbers"]["ends"]
    assert (row["ok"], row["why"]) == (False, "the process ended during this row")


def test_a_lost_gpu_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(Context, "lost", lambda _: calls[-1] == "breaks")
    results = {"machine": {}, "parts": {}}
    path = tmp_path / "results.json"
    assert not gpu_check._run_part(_part(calls), _context(), results, path)
    assert calls == ["one", "breaks"]
    rows = json.loads(path.read_text())["parts"]["numbers"]
    assert rows["breaks"]["why"] == "RuntimeError: it broke; the GPU was lost to the process"


@without_gpu
def test_a_gpu_may_be_required(tmp_path: Path) -> None:
    results = str(tmp_path / "results.json")
    assert gpu_check.main(["speed", "--require-gpu", "--results", results]) == 1


def test_results_are_those_of_a_module() -> None:
    content = Path(_C.__file__).read_bytes()
    assert hashlib.sha256(content).hexdigest().startswith(gpu_check._machine(True)["module"])


def test_operators_are_compared_without_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    places = (torch.backends.cudnn, torch.backends.cuda.matmul)

    def cases(*_: object) -> dict[str, object]:
        seen.extend(place.allow_tf32 for place in places)
        return {}

    before = [place.allow_tf32 for place in places]
    monkeypatch.setattr(operators, "_run_cases", cases)
    operators.OPERATORS.run("relu", _context())
    assert seen == [False, False]
    assert [place.allow_tf32 for place in places] == before


def test_results_of_another_machine_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text(json.dumps({"machine": {"device": "A"}, "parts": {"ops": {}}}))
    assert gpu_check._load(path, {"device": "B"})["parts"] == {}
    assert gpu_check._load(path, {"device": "A"})["parts"] == {"ops": {}}
