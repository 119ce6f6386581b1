"""The largest batch that trains within a memory limit, found without running out of memory.

The usual search tries growing batches until an allocation fails and halves from there:

    for batch_size in [1, 2, 4, 8, 16, 32]:
        try:
            test_inference(batch_size)
        except RuntimeError:  # out of memory
            break

Corrected here: training needs more than inference, so backward and the optimizer's state count;
not only powers of two are tried; and what does not fit need not be run. With a memory budget a step
is planned before it runs, and ``ORTMODULE_MEMORY_OPT_STRICT=1`` makes a batch whose least step does
not fit an error that states the bytes it would need.

Both searches run in processes whose address space is really limited.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

MIB = 2**20
LENGTH, WIDTH = 128, 128
# Of the limit; the rest is for the heap's own fragmentation and the scratch of libraries.
BUDGET_PERCENT = 80
# One arena, and large blocks given back at once: else the limit would measure malloc's habits.
_HEAP = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": str(256 * 1024)}


class Classifier(nn.Module):
    """Transformer layers with dropout over sequences; returns its loss."""

    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.1, batch_first=True)
            for _ in range(layers)
        )
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        """Cross entropy of the mean over the sequence."""
        for layer in self.layers:
            x = layer(x)
        return nn.functional.cross_entropy(self.head(x.mean(1)), labels)


def make_batch(size: int) -> tuple[Tensor, Tensor]:
    """Random sequences and classes."""
    return torch.randn(size, LENGTH, WIDTH), torch.randint(0, 10, (size,))


def largest(fits: Callable[[int], bool], start: int = 2) -> int:
    """The largest size that fits, by doubling and then bisection; 0 if ``start`` does not."""
    if not fits(start):
        return 0
    good, bad = start, 2 * start
    while fits(bad):
        good, bad = bad, 2 * bad
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good


def _limit_address_space(extra_bytes: int) -> None:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmSize:"):
            limit = int(line.split()[1]) * 1024 + extra_bytes
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _train(model: nn.Module, optimizer: torch.optim.Optimizer, size: int, steps: int) -> float:
    x, labels = make_batch(size)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(x, labels)
        loss.backward()
        optimizer.step()
    return float(loss.detach())


def search_eager(limit: int, module: nn.Module) -> int:
    """Try until an allocation fails: print the largest batch that a step was made with."""
    optimizer = torch.optim.Adam(module.parameters())
    _train(module, optimizer, 2, 1)
    _limit_address_space(limit)

    def fits(size: int) -> bool:
        try:
            _train(module, optimizer, size, 1)
        except (RuntimeError, MemoryError):  # torch's CPU allocator raises a plain RuntimeError
            print(f"  batch {size}: out of memory", flush=True)
            return False
        print(f"  batch {size}: OK", flush=True)
        return True

    found = largest(fits)
    print(f"largest batch {found}", flush=True)
    return 0 if found else 1


def search_ours(limit: int, module: nn.Module) -> int:
    """Ask for plans until none fits: print the largest batch, and train with it."""
    from ortmodule_py import ORTModule, last_run_report

    os.environ["ORTMODULE_MEMORY_OPT_STRICT"] = "1"
    budget = limit * BUDGET_PERCENT // 100
    model = ORTModule(module, memory_budget=f"activations:{budget}")
    optimizer = torch.optim.Adam(model.parameters())
    # Compiles the module before the limit holds. Plans are sought for the first batch and taken for
    # others, so it should be of the size that one hopes for.
    _train(model, optimizer, 16, 1)
    _limit_address_space(limit)

    def fits(size: int) -> bool:
        try:
            _train(model, optimizer, size, 1)
        except RuntimeError as error:  # raised by the plan, before anything has run
            least = re.search(r"a budget of at least (\d+) bytes", str(error))
            if least is None:
                raise
            print(f"  batch {size}: needs {int(least[1]) / MIB:.1f} MiB", flush=True)
            return False
        planned = last_run_report(model)["planned_peak_bytes"]
        print(f"  batch {size}: planned {planned / MIB:.1f} MiB", flush=True)
        return True

    found = largest(fits)
    if not found:
        return 1
    loss = _train(model, optimizer, found, 2)
    print(f"largest batch {found}, two more steps with it: loss {loss:.4f}", flush=True)
    return 0


def main() -> int:
    """Run both searches; 0 if ours finds the larger batch."""
    parser = argparse.ArgumentParser(description="Find the largest batch for a memory limit")
    parser.add_argument("--limit-mib", type=int, default=96, help="memory for a step")
    parser.add_argument("--child", choices=["eager", "ours"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    limit = options.limit_mib * MIB
    if options.child:
        torch.manual_seed(0)
        torch.set_num_threads(1)
        search = search_ours if options.child == "ours" else search_eager
        return search(limit, Classifier())
    found = {}
    for variant in ("eager", "ours"):
        print(f"{variant}: {options.limit_mib} MiB for a step", flush=True)
        command = [sys.executable, __file__, *sys.argv[1:], "--child", variant]
        environment = {**os.environ, **_HEAP, "ORTMODULE_LOG_LEVEL": "ERROR"}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
        print(done.stdout, end="", flush=True)
        size = re.search(r"largest batch (\d+)", done.stdout)
        found[variant] = int(size[1]) if size and done.returncode == 0 else 0
    print(f"largest batch: eager {found['eager']}, ortmodule_py {found['ours']}")
    return 0 if found["ours"] > found["eager"] > 0 else 1


if __name__ == "__main__":
    raise SystemExit(main())
