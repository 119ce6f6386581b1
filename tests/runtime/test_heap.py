"""What the C library's heap keeps between steps on a CPU."""

from __future__ import annotations

import pytest

from tests.fresh_process import run

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
    done = run(_STEPS, ORTMODULE_LOG_LEVEL="ERROR", **environment)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.slow
def test_a_step_takes_the_memory_of_the_last_one_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)
    pages_of_a_layer = 256
    assert _faults_per_step() < pages_of_a_layer
    # What the user says of the heap holds: 40 layers are returned and faulted in again.
    assert _faults_per_step(MALLOC_TRIM_THRESHOLD_="131072") > 20 * pages_of_a_layer
