"""Several modules of one process, each trained by a thread of its own."""

from __future__ import annotations

import pytest

from tests.interface import fresh_process

# The threads end together, as nothing may be captured after one of them has ended: where a CUDA
# build of torch finds no GPU, `torch._C._ensureCUDADeviceGuardSet` refers to the thread's memory.
THREADS = """
import copy, sys, threading
import torch
from torch import nn
from ortmodule_py import DebugOptions, LogLevel, ORTModule, last_run_report

COUNT = 3
sys.setswitchinterval(SWITCH_S)
torch.manual_seed(0)
eager = [nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)) for _ in range(COUNT)]
models = [ORTModule(copy.deepcopy(m), DebugOptions(log_level=LogLevel.ERROR)) for m in eager]
start, end, failures = threading.Barrier(COUNT), threading.Barrier(COUNT), []

def work(model, module, seed):
    generator = torch.Generator().manual_seed(seed)
    try:
        start.wait()
        for i in range(30):
            x = torch.randn(2 + i % 3, 4, generator=generator)
            for runner in (model, module):
                runner.zero_grad()
                runner(x).sum().backward()
            for mine, theirs in zip(model.parameters(), module.parameters(), strict=True):
                torch.testing.assert_close(mine.grad, theirs.grad)
    except BaseException as error:
        failures.append(error)
    end.wait()

threads = [threading.Thread(target=work, args=(models[i], eager[i], i)) for i in range(COUNT)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not failures, failures
for model in models:
    report = last_run_report(model)
    assert report["compiled"] and report["captures"] >= 1 and report["plans"] >= 1, dict(report)
"""


@pytest.mark.parametrize("switch_s", [5e-3, 1e-6])
def test_modules_in_threads(switch_s: float) -> None:
    """One captures while another runs: Dynamo refused the latter where torch before 2.13 traced."""
    finished = fresh_process.run(THREADS.replace("SWITCH_S", str(switch_s)))
    assert finished.returncode == 0, finished.stderr[-3000:]
