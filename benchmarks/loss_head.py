"""`python -m benchmarks.loss_head`: linear layer and cross entropy with a large vocabulary, against eager.

Both heads train the same weights on the same rows, in turn, on one pinned thread. Memory is what a
step holds at most beyond the gradients that it hands over, counted over the whole process; eager's
is that of its scores, its log-probabilities and their gradient.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor

from ortmodule_py.nn import LinearCrossEntropy
from ortmodule_py.testing import install_counting_allocator, measure_peak

Head = Callable[[Tensor, Tensor], Tensor]


def _step(head: Head, layer: LinearCrossEntropy, rows: Tensor, labels: Tensor) -> None:
    layer.zero_grad(set_to_none=True)
    rows.grad = None
    head(rows, labels).backward()


def _working_bytes(head: Head, layer: LinearCrossEntropy, rows: Tensor, labels: Tensor) -> int:
    layer.zero_grad(set_to_none=True)
    rows.grad = None
    with measure_peak() as measured:
        head(rows, labels).backward()
    return measured.peak_above_start - layer.weight.nbytes - rows.nbytes


def _processor_ms(head: Head, layer: LinearCrossEntropy, rows: Tensor, labels: Tensor) -> float:
    start = time.process_time()
    _step(head, layer, rows, labels)
    return (time.process_time() - start) * 1e3


def measure(row_count: int, channels: int, classes: int, rounds: int) -> dict[str, float]:
    """Bytes, times and the largest difference of gradients of both heads."""
    torch.manual_seed(0)
    layer = LinearCrossEntropy(channels, classes, bias=False)
    rows = torch.randn(row_count, channels, requires_grad=True)
    labels = torch.randint(0, classes, (row_count,))

    def eager(x: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(x, layer.weight), target)

    heads = {"eager": eager, "ours": layer}
    gradients = {}
    for name, head in heads.items():
        _step(head, layer, rows, labels)
        assert layer.weight.grad is not None and rows.grad is not None
        gradients[name] = (layer.weight.grad, rows.grad)
    pairs = zip(gradients["eager"], gradients["ours"], strict=True)
    error = max(float((a - b).abs().max() / a.abs().max()) for a, b in pairs)
    gradients.clear()
    used = {name: _working_bytes(head, layer, rows, labels) for name, head in heads.items()}
    times: dict[str, list[float]] = {name: [] for name in heads}
    for _ in range(rounds):
        for name, head in heads.items():
            times[name].append(_processor_ms(head, layer, rows, labels))
    return {
        "scores_bytes": 4 * row_count * classes,
        "eager_bytes": used["eager"],
        "ours_bytes": used["ours"],
        "eager_ms": statistics.median(times["eager"]),
        "ours_ms": statistics.median(times["ours"]),
        "difference": error,
    }


def main() -> int:
    """Measures the shapes of the command line and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--classes", type=int, default=50_000)
    parser.add_argument("--channels", type=int, default=512)
    parser.add_argument("--rows", type=int, nargs="*", default=[1024, 2048, 4096])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--core", type=int, default=None)
    options = parser.parse_args()
    if options.core is not None:
        os.sched_setaffinity(0, {options.core})
    torch.set_num_threads(1)
    install_counting_allocator()
    table = Table(title=f"loss head, {options.classes} classes, {options.channels} channels")
    for column in ("rows", "scores MiB", "eager MiB", "ours MiB", "bytes", "eager ms", "ours ms"):
        table.add_column(column, justify="right")
    table.add_column("time", justify="right")
    table.add_column("largest difference", justify="right")
    for count in options.rows:
        r = measure(count, options.channels, options.classes, options.rounds)
        mebibytes = [
            f"{r[key] / 2**20:.1f}" for key in ("scores_bytes", "eager_bytes", "ours_bytes")
        ]
        table.add_row(
            str(count),
            *mebibytes,
            f"1/{r['eager_bytes'] / r['ours_bytes']:.0f}",
            f"{r['eager_ms']:.0f}",
            f"{r['ours_ms']:.0f}",
            f"{r['ours_ms'] / r['eager_ms']:.2f}",
            f"{r['difference']:.1e}",
        )
    Console(width=120).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
