"""Running out of memory, a hundred times: torch's own error, nothing grows, nothing is spoilt.

The limit is one of the kernel on the address space, so any allocation of the step may fail.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fresh_process import run

SCRIPT = """
import ctypes, gc, hashlib, json, resource, sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from ortmodule_py import DebugOptions, LogLevel, ORTModule, last_run_report, testing

FAILURES = {failures}
MIB = 2**20
testing.install_counting_allocator()
torch.set_num_threads(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.scales = nn.ParameterList(torch.rand(1024) + 0.5 for _ in range(6))
        self.norm = nn.BatchNorm1d(1024)
        # Its gradient takes 32 MiB while most of what forward keeps is still there.
        self.rows = nn.Embedding(8192, 1024)
        self.out = nn.Linear(1024, 8)

    def forward(self, x):
        x = self.norm(x)
        for scale in self.scales:
            x = F.dropout(F.layer_norm(x * scale, (1024,)).cumsum(1).tanh(), 0.1, self.training)
        rows = torch.arange(x.shape[0])
        return self.out(x + self.rows(rows)).square().mean()


def new_model():
    torch.manual_seed(1)
    return ORTModule(Net(), DebugOptions(LogLevel.FATAL))


def digest(tensors):
    text = hashlib.sha256()
    for tensor in tensors:
        text.update(tensor.detach().numpy().tobytes())
    return text.hexdigest()


libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.restype, libc.free.argtypes = None, [ctypes.c_void_p]


def fill_heap():
    # Where mmap meets the limit, malloc grows its heap instead if just that still fits. What is
    # free there later would hold the tensors of a step whatever the limit, so it is taken: until a
    # block has pages of its own (malloc notes it in bit 1 of the size before the block).
    blocks = []
    while not blocks or not ctypes.c_size_t.from_address(blocks[-1] - 8).value & 2:
        blocks.append(libc.malloc(MIB))
    libc.free(blocks.pop())
    return blocks


def limited(mib, function):
    # The stage at which memory ran out, or None.
    stage = []
    libc.malloc_trim(0)
    taken = fill_heap()
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + mib * MIB, resource.RLIM_INFINITY))
    try:
        function(stage)
    except (RuntimeError, MemoryError) as error:
        message = str(error)
    else:
        return None
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        for block in taken:
            libc.free(block)
    assert "can't allocate memory" in message, message
    return stage[-1]


torch.manual_seed(0)
large, small = torch.randn(2048, 1024), torch.randn(16, 1024)
model = new_model()
kept = {{name: value.clone() for name, value in model.state_dict().items()}}
stages = {{}}


def step(stage):
    stage.append("forward")
    loss = model(large)
    stage.append("backward")
    loss.backward()


def small_step():
    # From the first state and seed, whatever was before.
    model.load_state_dict(kept)
    model.zero_grad()
    torch.manual_seed(2)
    loss = model(small)
    loss.backward()
    found = [loss, *(p.grad for p in model.parameters()), *model.buffers()]
    return digest(found)


result = {{}}
if FAILURES:
    result["first"] = limited(50, step)
    small_step()
    model.zero_grad()
    model.load_state_dict(kept)
    torch.manual_seed(3)
    step([])
    wanted = [p.grad for p in model.parameters()]
    buffers = digest(model.buffers())
    model.load_state_dict(kept)
    untouched = digest(model.buffers())
    count, growth = 0, []
    while count < FAILURES:
        model.zero_grad()
        model.load_state_dict(kept)
        torch.manual_seed(3)
        mib = 2 + (7 * count + 3 * stages.get("fits", 0)) % 48
        if count % 2:
            loss = model(large)
            where = limited(mib // 2, lambda stage: (stage.append("backward"), loss.backward()))
            del loss
        else:
            where = limited(mib, step)
        count += where is not None
        stages[where or "fits"] = stages.get(where or "fits", 0) + 1
        assert stages.get("fits", 0) < FAILURES, stages
        for parameter, gradient in zip(model.parameters(), wanted):
            assert parameter.grad is None or torch.equal(parameter.grad, gradient)
        if where == "forward":
            assert all(p.grad is None for p in model.parameters())
        assert digest(model.buffers()) in (buffers, untouched)
        for name, parameter in model.named_parameters():
            assert torch.equal(parameter, kept[name])
        if count % 20 == 0 and where is not None:
            small_step()
            model.zero_grad()
            gc.collect()
            growth.append((testing.cpu_memory_stats().current_bytes, testing.vm_rss_bytes()))
    result["growth"] = growth
    report = last_run_report(model)
    result["captures"] = report["captures"]
    result["compiled"] = report["compiled"]
result |= {{"stages": stages, "digest": small_step()}}
print(json.dumps(result))
"""


def _run(failures: int) -> dict[str, Any]:
    # Every tensor that counts has pages of its own, so that the limit meets tensors alone. Where
    # pages run out, malloc would turn to the arena of another thread, which has 64 MiB in reserve.
    finished = run(
        SCRIPT.format(failures=failures), MALLOC_MMAP_THRESHOLD_="262144", MALLOC_ARENA_MAX="1"
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    found: dict[str, Any] = json.loads(finished.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
def test_a_hundred_times() -> None:
    found = _run(100)
    stages = found["stages"]
    assert found["first"] == "forward"  # in the call that captures
    assert stages["forward"] + stages["backward"] == 100
    assert stages["forward"] >= 20 and stages["backward"] >= 20, stages
    (allocated, resident), (last_allocated, last_resident) = found["growth"][0], found["growth"][-1]
    assert last_allocated == allocated
    assert last_resident <= resident + 2**20, found["growth"]
    assert found["compiled"] and found["captures"] <= 2
    assert found["digest"] == _run(0)["digest"]
