"""The short form of `benchmarks/endurance.py`: nothing grows."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from benchmarks import endurance
from tests.fresh_process import ROOT, environment

MIB = 2**20


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "shapes", "window"), [(300, 50, 100), (1500, 500, 500)])
def test_nothing_grows(steps: int, shapes: int, window: int) -> None:
    """In a process of its own, as the resident set is that of the process."""
    short = f"--steps {steps} --shapes {shapes} --window {window} --evaluate-every 50 --untimed"
    finished = subprocess.run(
        [sys.executable, "-m", "benchmarks.endurance", *short.split()],
        env=environment(OMP_WAIT_POLICY=os.environ.get("OMP_WAIT_POLICY", "PASSIVE")),
        cwd=ROOT, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert len(finished.stdout.splitlines()) == steps // window + 2


def test_growth_is_a_fault() -> None:
    def window(**changed: float) -> endurance.Window:
        usual = dict(
            steps=1, resident_bytes=100 * MIB, allocated_bytes=5, captures=2, plans=9, loss=0.0,
            step_cpu_ms=1.0, ratio_to_eager=1.0,
        )  # fmt: skip
        return endurance.Window(**(usual | changed))  # type: ignore[arg-type]

    assert endurance.faults([window(), window(), window(resident_bytes=103 * MIB)]) == []
    for grown in (
        {"resident_bytes": 105 * MIB},
        {"allocated_bytes": 6},
        {"captures": 3},
        {"plans": 20},
        {"ratio_to_eager": 1.03},
    ):
        assert len(endurance.faults([window(), window(), window(**grown)])) == 1
