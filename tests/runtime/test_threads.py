"""Several modules of one process, each trained by a thread of its own; and the threads of kernels."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ortmodule_py import ORTModule
from tests import forked_process, fresh_process

# The threads end together, as nothing may be captured after one of them has ended: where a CUDA
# build of torch finds no GPU, `torch._C._ensureCUDADeviceGuardSet` refers to the thread's memory.
THREADS = """
import copy, sys, threading
import torch
from torch import nn
from ortmodule_py import DebugOptions, LogLevel, ORTModule, last_run_report

COUNT = 3
torch.manual_seed(0)
eager = [nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)) for _ in range(COUNT)]

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
    ready.wait()
    end.wait()

end, threads = threading.Event(), []
for switch_s in (5e-3, 1e-6):
    sys.setswitchinterval(switch_s)
    torch._dynamo.reset()
    models = [ORTModule(copy.deepcopy(m), DebugOptions(log_level=LogLevel.ERROR)) for m in eager]
    start, ready, failures = threading.Barrier(COUNT), threading.Barrier(COUNT + 1), []
    for i in range(COUNT):
        threads.append(threading.Thread(target=work, args=(models[i], eager[i], i)))
        threads[-1].start()
    ready.wait()
    assert not failures, failures
    for model in models:
        report = last_run_report(model)
        assert report["compiled"] and report["captures"] >= 1 and report["plans"] >= 1, dict(report)
end.set()
for thread in threads:
    thread.join()
"""


@pytest.mark.slow
def test_modules_in_threads() -> None:
    """One captures while another runs: Dynamo refused the latter where torch before 2.13 traced.

    Once with Python's usual interval between threads, once with one that switches all the time."""
    finished = forked_process.run("-c", THREADS)
    assert finished.returncode == 0, finished.stderr[-3000:]


# Processor time of the threads that torch's pool runs beside this one, as a part of this one's.
OTHERS = """
import time, torch
from torch import nn
from ortmodule_py import ORTModule

model = ORTModule(nn.Sequential(nn.GELU(), nn.Tanh(), nn.Softplus()))
x = torch.randn(1 << 20)
for count in (1, 2):
    torch.set_num_threads(count)
    with torch.no_grad():
        model(x)
        process, own = time.process_time(), time.thread_time()
        for _ in range(20):
            model(x)
        process, own = time.process_time() - process, time.thread_time() - own
    print((process - own) / own)
"""


@pytest.mark.slow
def test_kernels_run_on_torchs_threads() -> None:
    """As many as `torch.set_num_threads` says, also if it is called after the capture."""
    finished = fresh_process.run(OTHERS, OMP_WAIT_POLICY="PASSIVE")
    assert finished.returncode == 0, finished.stderr[-3000:]
    one, two = map(float, finished.stdout.split()[-2:])
    assert one < 0.1
    assert two > 0.3


def test_threads_change_no_bit() -> None:
    torch.manual_seed(0)
    layers = nn.Linear(384, 768), nn.GELU(), nn.LayerNorm(768), nn.Linear(768, 384), nn.Softmax(-1)
    model = ORTModule(nn.Sequential(*layers))
    x, target = torch.randn(1500, 384), torch.randint(384, (1500,))
    results, before = [], torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            model.zero_grad()
            loss = nn.functional.cross_entropy(model(x), target)
            loss.backward()
            gradients = [p.grad for p in model.parameters() if p.grad is not None]
            results.append([loss.detach(), *(g.clone() for g in gradients)])
    finally:
        torch.set_num_threads(before)
    for others in results[1:]:
        for one, other in zip(results[0], others, strict=True):
            assert torch.equal(one, other)
