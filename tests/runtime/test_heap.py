"""What the C library's heap keeps between steps on a CPU."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_STEPS = """
import resource
import torch
from torch import nn
from ortmodule_py import ORTModule

torch.set_num_threads(1)
layers = [layer for _ in range(40) for layer in (nn.Linear(64, 64), nn.Tanh())]
model = ORTModule(nn.Sequential(*layers))
x = torch.randn(4096, 64)  # 1 MiB a layer


def step():
    for p in model.parameters():
        p.grad = None
    model(x).sum().backward()


for _ in range(4):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    step()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 5)
"""


def _faults_per_step(**environment: str) -> int:
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("MALLOC_") and name != "GLIBC_TUNABLES"
    }
    run = subprocess.run(
        [sys.executable, "-c", _STEPS],
        env={**inherited, "ORTMODULE_LOG_LEVEL": "ERROR", **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return int(run.stdout)


@pytest.mark.slow
@pytest.mark.skipif(
    os.confstr_names.get("CS_GNU_LIBC_VERSION") is None, reason="the heap is not glibc's"
)
def test_a_step_takes_the_memory_of_the_last_one_again() -> None:
    pages_of_a_layer = 256
    assert _faults_per_step() < pages_of_a_layer
    # What the user says of the heap holds: 40 layers are returned and faulted in again.
    assert _faults_per_step(MALLOC_TRIM_THRESHOLD_="131072") > 20 * pages_of_a_layer
