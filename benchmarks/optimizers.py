"""`python -m benchmarks.optimizers`: FusedAdam against `torch.optim.AdamW(foreach=True)` and `fused=True`.

All optimizers update copies of the same parameters with the same gradients, in turn, in one
process: processor time per step on one pinned thread and on two, which do not spin. The largest
difference is that of the parameters after 100 steps to those of `foreach=True`, relative to the
largest parameter.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch loads its threads
os.environ.setdefault("GOMP_SPINCOUNT", "0")

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.processes import default_core
from ortmodule_py.optim import AdamWMode, FusedAdam

Optimizer = torch.optim.Optimizer
Shapes = list[tuple[int, ...]]

_HYPER = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
OPTIMIZERS: dict[str, Callable[[list[Tensor]], Optimizer]] = {
    "foreach": lambda params: torch.optim.AdamW(params, foreach=True, **_HYPER),
    "fused": lambda params: torch.optim.AdamW(params, fused=True, **_HYPER),
    "ours": lambda params: FusedAdam(params, adam_w_mode=AdamWMode.ADAMW_TORCH, **_HYPER),
}


def gpt_shapes(layers: int = 4, width: int = 512, classes: int = 16_000) -> Shapes:
    """The parameters of a GPT: matrices, biases and norms."""
    block: Shapes = [(width,), (width,), (3 * width, width), (3 * width,), (width, width), (width,)]
    block += [(width,), (width,), (4 * width, width), (4 * width,), (width, 4 * width), (width,)]
    return [(classes, width), (256, width), *(block * layers), (width,), (width,)]


SETS: dict[str, Callable[[], Shapes]] = {
    "gpt": gpt_shapes,
    "gpt in cache": lambda: gpt_shapes(2, 64, 512),
    "tiny": lambda: [(1 + 7 * i % 61,) for i in range(2000)],
}


class Contest:
    """The same parameters under every optimizer."""

    def __init__(self, shapes: Shapes, dtype: torch.dtype) -> None:
        generator = torch.Generator().manual_seed(0)
        start = [torch.randn(s, generator=generator).to(dtype) for s in shapes]
        self.grads = [torch.randn(s, generator=generator).mul_(0.01).to(dtype) for s in shapes]
        self.params: dict[str, list[Tensor]] = {}
        self.optimizers: dict[str, Optimizer] = {}
        for name, make in OPTIMIZERS.items():
            self.params[name] = [torch.nn.Parameter(p.clone()) for p in start]
            for param, grad in zip(self.params[name], self.grads, strict=True):
                param.grad = grad
            self.optimizers[name] = make(self.params[name])

    def times_ms(self, name: str, steps: int) -> tuple[float, float]:
        """Processor and wall time per step."""
        optimizer = self.optimizers[name]
        wall, processor = time.perf_counter(), time.process_time()
        for _ in range(steps):
            optimizer.step()
        processor, wall = time.process_time() - processor, time.perf_counter() - wall
        return processor / steps * 1e3, wall / steps * 1e3

    def measure(self, rounds: int, steps: int) -> dict[str, tuple[float, float]]:
        """Medians over rounds in which the optimizers take turns."""
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in self.optimizers}
        for name in self.optimizers:
            self.times_ms(name, 1)  # state, threads
        for _ in range(rounds):
            for name in self.optimizers:
                times[name].append(self.times_ms(name, steps))
        return {
            name: (statistics.median(t[0] for t in all_), statistics.median(t[1] for t in all_))
            for name, all_ in times.items()
        }


def differences(shapes: Shapes, dtype: torch.dtype, steps: int = 100) -> dict[str, float]:
    """Largest difference to foreach after steps with new gradients, relative to the largest."""
    contest = Contest(shapes, dtype)
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        for grad in contest.grads:
            grad.copy_(torch.randn(grad.shape, generator=generator).mul_(0.01))
        for optimizer in contest.optimizers.values():
            optimizer.step()
    flat = {
        name: torch.cat([p.detach().double().flatten() for p in params])
        for name, params in contest.params.items()
    }
    largest = flat["foreach"].abs().max()
    return {name: float((p - flat["foreach"]).abs().max() / largest) for name, p in flat.items()}


def main() -> int:
    """Measures the sets of the command line and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", nargs="*", default=list(SETS), choices=list(SETS))
    parser.add_argument("--dtype", default="float32", choices=["float32", "float64", "bfloat16"])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=3, help="steps per turn")
    parser.add_argument("--core", type=int, default=default_core())
    options = parser.parse_args()
    dtype = getattr(torch, options.dtype)
    table = Table(title=f"a step of AdamW, {options.dtype}; processor ms (ratio to fused)")
    table.add_column("parameters")
    for column in ("threads", *OPTIMIZERS, "wall: ours to fused", "difference: fused", "ours"):
        table.add_column(column, justify="right")
    every_core = os.sched_getaffinity(0)
    for name in options.sets:
        shapes = SETS[name]()
        found = differences(shapes, dtype, 100)
        for threads in (1, 2):
            os.sched_setaffinity(0, {options.core} if threads == 1 else every_core)
            torch.set_num_threads(threads)
            times = Contest(shapes, dtype).measure(options.rounds, options.steps)
            base, base_wall = times["fused"]
            elements = sum(torch.Size(s).numel() for s in shapes)
            table.add_row(
                f"{name}: {len(shapes)} tensors, {elements / 1e6:.2f} M",
                str(threads),
                *(f"{t:.3f} ({t / base:.2f})" for t, _ in times.values()),
                f"{times['ours'][1] / base_wall:.2f}",
                f"{found['fused']:.1e}",
                f"{found['ours']:.1e}",
            )
    Console(width=150).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
