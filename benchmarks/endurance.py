"""Thousands of steps with hundreds of batch shapes: does anything grow, does anything slow down?

A small text model (embedding, attention, dropout, norm, a loss over padded labels) trains with AdamW;
every so often it is evaluated. Each window of steps sees every shape equally often, so that windows
can be compared. A row per window shows the resident set, the bytes that torch's allocator has given
out, captures, plans made so far, processor time per step, and how many times that of eager PyTorch
this is: a copy of the model takes a forward and a backward at the same shape in turn, and the
quickest of each shape count, as other programs disturb both. The first window is the warm-up. A
module keeps the plans that 64 MiB hold, of this one over 500; with more shapes than that, plans are
made anew all the time.

    taskset -c 1 python -m benchmarks.endurance
    python -m benchmarks.endurance --steps 400 --shapes 20 --window 100 --evaluate-every 50

Exit status 1 if the resident set grows by more than 2 % or 4 MiB from the second window to the last,
allocator bytes, captures or plans grow at all, or the ratio to eager grows by more than 2 %.
"""

from __future__ import annotations

import argparse
import copy
import gc
import random
import sys
import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ortmodule_py import DebugOptions, LogLevel, ORTModule, last_run_report, testing

VOCABULARY = 64


class Tagger(nn.Module):
    """Labels each token: one layer of attention and a dense one, with dropout."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.norm = nn.LayerNorm(width)
        self.hidden = nn.Linear(width, 2 * width)
        self.out = nn.Linear(2 * width, 8)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        """Mean loss over `ids` [batch, length], where `labels` of -100 count for nothing."""
        x = self.embedding(ids)
        x = self.norm(x + self.attention(x, x, x, need_weights=False)[0])
        x = F.dropout(F.gelu(self.hidden(x)), 0.1, self.training)
        return F.cross_entropy(self.out(x).flatten(0, 1), labels.flatten())


@dataclass
class Window:
    """The state at the end of a window, and what its steps took."""

    steps: int
    resident_bytes: int
    allocated_bytes: int
    captures: int
    plans: int
    loss: float
    step_cpu_ms: float
    ratio_to_eager: float


def shapes(count: int) -> list[tuple[int, int]]:
    """Different (batch, length), from one example upwards, in a fixed random order."""
    side = 1
    while side * (side + 4) < count:
        side += 1
    found = [(batch, length) for batch in range(1, side + 1) for length in range(3, side + 7)]
    random.Random(0).shuffle(found)
    return found[:count]


def batch_of(shape: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Random tokens, labels that follow from them, a tenth of them padding."""
    ids = torch.randint(VOCABULARY, shape)
    labels = (ids % 8).masked_fill(torch.rand(shape) < 0.1, -100)
    labels[0, 0] = 0  # a mean over nothing would be NaN
    return ids, labels


def evaluate(model: ORTModule, sizes: list[tuple[int, int]]) -> None:
    """The loss of a few batches without gradients."""
    model.eval()
    with torch.no_grad():
        for size in sizes:
            model(*batch_of(size))
    model.train()


def _note(quickest: dict[int, float], shape: int, taken: float) -> None:
    """Keep the least time that a step took at this shape."""
    quickest[shape] = min(taken, quickest.get(shape, taken))


def run(steps: int, shape_count: int, window: int, evaluate_every: int) -> list[Window]:
    """Train; one entry per window."""
    testing.install_counting_allocator()
    torch.manual_seed(0)
    eager = Tagger()
    model = ORTModule(copy.deepcopy(eager), DebugOptions(LogLevel.ERROR))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    sizes = shapes(shape_count)
    windows: list[Window] = []
    total = elapsed = 0.0
    quickest: dict[int, float] = {}
    quickest_eager: dict[int, float] = {}
    for step in range(1, steps + 1):
        shape = step % len(sizes)
        batch = batch_of(sizes[shape])
        begun = time.process_time()
        eager(*batch).backward()
        _note(quickest_eager, shape, time.process_time() - begun)
        eager.zero_grad()
        begun = time.process_time()
        loss = model(*batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total += loss.item()
        taken = time.process_time() - begun
        elapsed += taken
        _note(quickest, shape, taken)
        if step % evaluate_every == 0:
            evaluate(model, sizes[:4])
        if step % window == 0:
            del loss
            gc.collect()
            report = last_run_report(model)
            windows.append(
                Window(
                    step,
                    testing.vm_rss_bytes(),
                    testing.cpu_memory_stats().current_bytes,
                    report["captures"],
                    report["plans"],
                    total / window,
                    elapsed / window * 1e3,
                    sum(quickest.values()) / sum(quickest_eager.values()),
                )
            )
            print(row(windows[-1]), flush=True)
            quickest.clear()
            quickest_eager.clear()
            total = elapsed = 0.0
    return windows


def row(window: Window) -> str:
    """One line of the table."""
    return (
        f"{window.steps:7d} {window.resident_bytes / 2**20:9.1f} {window.allocated_bytes:11,d} "
        f"{window.captures:8d} {window.plans:7d} {window.loss:8.4f} {window.step_cpu_ms:9.3f} "
        f"{window.ratio_to_eager:9.3f}"
    )


def faults(windows: list[Window], timed: bool = True) -> list[str]:
    """What grew."""
    first, last = windows[1], windows[-1]
    found = []
    grown = last.resident_bytes - first.resident_bytes
    if grown > max(0.02 * first.resident_bytes, 4 * 2**20):
        found.append(f"the resident set grew by {grown / 2**20:.1f} MiB")
    if last.allocated_bytes > first.allocated_bytes:
        found.append(f"allocated bytes grew by {last.allocated_bytes - first.allocated_bytes}")
    if last.captures > first.captures:
        found.append(f"captures grew from {first.captures} to {last.captures}")
    if last.plans > first.plans:
        found.append(f"plans grew from {first.plans} to {last.plans}")
    slower = last.ratio_to_eager / first.ratio_to_eager - 1
    if timed and slower > 0.02:
        found.append(f"a step takes {slower:.1%} longer")
    return found


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--shapes", type=int, default=500)
    parser.add_argument("--window", type=int, default=1000)
    parser.add_argument("--evaluate-every", type=int, default=200)
    parser.add_argument("--untimed", action="store_true", help="do not judge the time")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print("  steps   RSS MiB   allocated captures   plans     loss  ms/step  to eager")
    windows = run(given.steps, given.shapes, given.window, given.evaluate_every)
    found = faults(windows, timed=not given.untimed)
    for fault in found:
        print(f"FAULT: {fault}")
    if not found:
        print("nothing grew")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
