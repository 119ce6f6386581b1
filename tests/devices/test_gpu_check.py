"""tools/gpu_check on a machine without a GPU: what it says, and that it goes on where it stopped."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import torch

from tools.gpu_check import __main__ as gpu_check
from tools.gpu_check.part import Context, Part

without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")


@without_gpu
def test_it_says_what_it_would_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert gpu_check.main(["speed", "budgets", "--results", str(tmp_path / "results.json")]) == 0
    said = capsys.readouterr().out
    assert "no GPU was found; on one this would run:" in said
    assert "speed        5 rows  steps of large models" in said
    assert "budgets      5 rows  predicted against measured peak at 8 budgets" in said
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


def test_it_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    part = _part(calls)
    path = tmp_path / "results.json"
    results = {"machine": {}, "parts": {}}
    context = Context(torch.device("cpu"), emulated=True)
    gpu_check._run_part(part, context, results, path)
    assert calls == ["one", "breaks", "three"]
    written = json.loads(path.read_text())["parts"]["numbers"]
    assert written["one"]["ok"] and written["one"]["figure"] == 1.5
    assert not written["breaks"]["ok"]
    assert written["breaks"]["why"] == "RuntimeError: it broke"
    del results["parts"]["numbers"]["three"]
    gpu_check._run_part(part, context, results, path)
    assert calls == ["one", "breaks", "three", "three"]
    # Out of time: what is left stays for the next run, and the table says so.
    monkeypatch.setattr(gpu_check, "PART_SECONDS", 0)
    monkeypatch.setattr(gpu_check, "PARTS", (part,))
    results["parts"]["numbers"].pop("one")
    time.sleep(0.01)
    gpu_check._run_part(part, context, results, path)
    assert "one" not in results["parts"]["numbers"]
    assert gpu_check._table(results) == 2  # one is missing, one is wrong


def test_results_of_another_machine_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text(json.dumps({"machine": {"device": "A"}, "parts": {"ops": {}}}))
    assert gpu_check._load(path, {"device": "B"})["parts"] == {}
    assert gpu_check._load(path, {"device": "A"})["parts"] == {"ops": {}}
