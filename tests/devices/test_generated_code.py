"""ORTMODULE_GENERATED_CODE: pointwise groups as code of their own, compiled by the C++ compiler in
place of NVRTC where the CUDA kernels are emulated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ortmodule_py import _C, ORTModule
from ortmodule_py.base import generated_code, gpu_checks
from tests import fresh_process
from tests.devices.emulated import emulated

SCRIPT = """
import json, os, sys
import torch
from torch import nn
from ortmodule_py import _C, ORTModule, last_run_report

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
    def forward(self, x):
        y = self.down(nn.functional.dropout(nn.functional.gelu(self.up(x)), 0.2))
        return (torch.sigmoid(y) * x).square().mean()

def steps(setting):
    os.environ["ORTMODULE_GENERATED_CODE"] = setting
    torch.manual_seed(0)
    model, x = ORTModule(Net()), torch.randn(6, 16)
    found = []
    for step in range(5):
        torch.manual_seed(step)
        model.zero_grad()
        loss = model(x)
        loss.backward()
        found.append([loss.detach(), *(p.grad.clone() for p in model.parameters())])
        _C.finish_generated_code()
    return found, last_run_report(model)

interpreted, off = steps("0")
generated, on = steps("1")
again, off_again = steps("0")
same = all(
    torch.equal(a, b)
    for other in (generated, again)
    for ours, theirs in zip(interpreted, other)
    for a, b in zip(ours, theirs)
)
launches = [r["generated_code"].get("launches", 0) for r in (off, on, off_again)]
print(json.dumps([same, launches, on["generated_code"], on["cuda_graphs"]]))
"""


def steps(folder: Path, **variables: str) -> tuple[bool, list[int], dict[str, Any], dict[str, Any]]:
    """Equal bits, launches so far after each of three trainings, counts, replays."""
    done = fresh_process.run(
        SCRIPT, ORTMODULE_CUDA_EMULATION="1", ORTMODULE_CACHE_DIR=str(folder), **variables
    )
    assert done.returncode == 0, done.stderr
    same, launches, counts, graphs = json.loads(done.stdout.strip().splitlines()[-1])
    return same, launches, counts, graphs


@emulated
@pytest.mark.slow
def test_steps_have_the_interpreters_bits_and_the_next_process_compiles_nothing(
    tmp_path: Path,
) -> None:
    same, launches, counts, _ = steps(tmp_path)
    assert same
    assert launches[0] == 0 < launches[1] == launches[2], "a model with 0 is interpreted"
    assert counts["compiled"] == counts["loaded"] >= 2 and counts["failed"] == 0
    same, launches, kept, _ = steps(tmp_path, ORTMODULE_CUDA_GRAPH="1")
    assert same and launches[1] > 0
    assert kept["compiled"] == 0 and kept["from_disk"] == counts["compiled"]


@emulated
@pytest.mark.slow
def test_recorded_steps_launch_it(tmp_path: Path) -> None:
    """Groups are compiled before they are recorded, since a recording keeps its kernels."""
    same, launches, _, graphs = steps(tmp_path, ORTMODULE_CUDA_GRAPH="1")
    assert same and launches[1] > 0 and graphs["replayed"] >= 2


@emulated
@pytest.mark.slow
def test_a_cache_of_others_is_not_used(tmp_path: Path) -> None:
    folder = tmp_path / "generated_code"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    same, launches, counts, _ = steps(tmp_path)
    assert same and launches[1] > 0 and counts["compiled"] >= 2
    assert not list(folder.iterdir())


def test_auto_follows_the_check(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ORTMODULE_CACHE_DIR", str(tmp_path))
    enabled: list[str] = []
    monkeypatch.setattr(_C, "enable_generated_code", lambda _, folder: enabled.append(folder))
    monkeypatch.setattr(_C, "generated_code_counts", lambda: None)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "GPU 5")

    def asked(setting: str) -> int:
        gpu_checks.is_checked.cache_clear()
        before = len(enabled)
        generated_code.enable_generated_code("cuda", setting, generated_code.logging.getLogger())
        return len(enabled) - before

    assert asked("auto") == 0 and asked("1") == 1 and asked("0") == 0
    gpu_checks.note_check(generated_code.FEATURE, True)
    assert asked("auto") == 1 and asked("0") == 0
    with monkeypatch.context() as other:
        other.setattr(gpu_checks, "build_hash", lambda: "another")
        assert asked("auto") == 0, "the check was of another build"
    gpu_checks.note_check(generated_code.FEATURE, False)
    assert asked("auto") == 0 and asked("1") == 1
    gpu_checks.is_checked.cache_clear()


def test_other_values_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setenv("ORTMODULE_GENERATED_CODE", "yes")
    with pytest.raises(ValueError, match=r"GENERATED_CODE\] the value must be auto, 0 or 1"):
        ORTModule(torch.nn.Linear(2, 2))
