"""`python -m benchmarks.attention`: attention with dropout 0.1 against eager and torch.compile.

One layer of self-attention (projections included) over `F.scaled_dot_product_attention` with
`dropout_p=0.1`, for which torch has no fused kernel on CPUs: it makes the L x L matrix, its dropout
and their gradients whole. All train the same weights on one pinned thread, in turn. Memory is the
peak of forward and backward above idle, parameters' gradients included, over the whole process.
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from ortmodule_py import ORTModule
from ortmodule_py.testing import install_counting_allocator, measure_peak

Step = Callable[[Tensor], Tensor]


class SelfAttention(nn.Module):
    """Causal self-attention with dropout of the probabilities; input [batch, length, width]."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, width)).square().mean()


def _step(model: nn.Module, x: Tensor) -> None:
    model.zero_grad(set_to_none=True)
    model(x).backward()


def _processor_ms(model: nn.Module, x: Tensor) -> float:
    start = time.process_time()
    _step(model, x)
    return (time.process_time() - start) * 1e3


def _peak_bytes(model: nn.Module, x: Tensor) -> int:
    model.zero_grad(set_to_none=True)
    with measure_peak() as measured:
        model(x).backward()
    return measured.peak_above_start


def measure(length: int, options: argparse.Namespace) -> dict[str, tuple[float, int]]:
    """Milliseconds (median) and peak bytes of a step by variant."""
    torch.manual_seed(0)
    eager = SelfAttention(options.width, options.heads)
    models: dict[str, nn.Module] = {"eager": eager, "ours": ORTModule(copy.deepcopy(eager))}
    if options.compile:
        models["compile"] = torch.compile(copy.deepcopy(eager))  # type: ignore[assignment]
    x = torch.randn(max(1, options.tokens // length), length, options.width)
    for model in models.values():
        _step(model, x)
    times: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(options.rounds):
        for name, model in models.items():
            times[name].append(_processor_ms(model, x))
    return {
        name: (statistics.median(times[name]), _peak_bytes(model, x))
        for name, model in models.items()
    }


def main() -> int:
    """Measures the lengths of the command line and prints a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attention", description=__doc__)
    parser.add_argument("--lengths", type=int, nargs="*", default=[128, 512, 1024, 2048])
    parser.add_argument("--tokens", type=int, default=4096, help="of a batch")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--core", type=int, default=None)
    parser.add_argument("--compile", action="store_true", help="torch.compile beside us")
    options = parser.parse_args()
    if options.core is not None:
        os.sched_setaffinity(0, {options.core})
    os.environ.setdefault("ORTMODULE_LOG_LEVEL", "ERROR")
    torch.set_num_threads(1)
    install_counting_allocator()
    table = Table(title=f"attention with dropout, {options.tokens} tokens, width {options.width}")
    for column in ("length", "variant", "ms", "time", "peak MiB", "bytes"):
        table.add_column(column, justify="left" if column == "variant" else "right")
    for length in options.lengths:
        results = measure(length, options)
        eager_ms, eager_bytes = results["eager"]
        for name, (ms, peak) in results.items():
            table.add_row(
                str(length),
                name,
                f"{ms:.0f}",
                f"{ms / eager_ms:.2f}",
                f"{peak / 2**20:.1f}",
                f"{peak / eager_bytes:.2f}",
            )
    Console(width=100).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
