"""The rates of the machine: measured once, kept, and of no consequence for any bit."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch

from ortmodule_py import ORTModule
from ortmodule_py.base.machine_rates import Rates, cache_file, machine_rates, measure
from tests.small_models import make


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("ORTMODULE_MACHINE_RATES", "measure")
    monkeypatch.setenv("ORTMODULE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path


def test_measured_once_and_kept(measured: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = machine_rates()
    assert first is not None and first.flops_per_us > 1e3 and first.bytes_per_us > 1e2
    assert json.loads(cache_file().read_text())["flops_per_us"] == first.flops_per_us
    monkeypatch.setattr(
        "ortmodule_py.base.machine_rates.measure", lambda _: pytest.fail("measured again")
    )
    assert machine_rates() == first


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"flops_per_us": -1, "bytes_per_us": 1e4}'])
def test_a_damaged_file_is_measured_anew(measured: Path, text: str) -> None:
    cache_file().parent.mkdir(parents=True)
    cache_file().write_text(text)
    rates = machine_rates()
    assert rates is not None and rates.flops_per_us > 0


def test_a_folder_that_cannot_be_written(measured: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = measured / "file"
    blocked.write_text("")
    monkeypatch.setenv("ORTMODULE_CACHE_DIR", str(blocked))
    assert machine_rates() is not None


def test_a_wrong_mode_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_MACHINE_RATES", "fast")
    with pytest.raises(ValueError, match="measure or estimate, but found 'fast'"):
        machine_rates()


@pytest.mark.slow
def test_rates_change_no_bit(measured: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base, batch = make("gpt")
    gradients = []
    for rates in (Rates(1e3, 1e6), Rates(1e6, 1e2), measure()):
        monkeypatch.setattr(
            "ortmodule_py.compile.step_budget.machine_rates", lambda _, rates=rates: rates
        )
        module = copy.deepcopy(base)
        model = ORTModule(module, memory_budget="activations:70%")
        torch.manual_seed(3)
        model(**batch).backward()
        gradients.append([p.grad for p in module.parameters()])
    for other in gradients[1:]:
        for a, b in zip(gradients[0], other, strict=True):
            assert torch.equal(a, b)
