"""`python -m benchmarks.small_rows`: operators over rows of few elements beside eager PyTorch.

What an operator costs per row shows where rows are short: in heads of attention, in channels, in
classes. Each operator runs over the last dimension of [elements / columns, columns]; ours as an
ORTModule of that operator alone, so the time of a call of the engine is in it. Processor time on one
pinned thread, the best of rounds in which all take turns; ratios are to eager, so below 1 is faster.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch loads its threads
os.environ.setdefault("GOMP_SPINCOUNT", "0")
os.environ.setdefault("ORTMODULE_LOG_LEVEL", "ERROR")

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from benchmarks.processes import default_core
from ortmodule_py import ORTModule

Formula = Callable[[Tensor, Tensor, Tensor], Tensor]


def _group_norm(x: Tensor, _scale: Tensor, _bias: Tensor) -> Tensor:
    """Eight groups of one channel each, so that a row is a group."""
    return F.group_norm(x.view(-1, 8, x.shape[-1]), 8)


OPERATORS: dict[str, Formula] = {
    "softmax": lambda x, _s, _b: torch.softmax(x, -1),
    "log_softmax": lambda x, _s, _b: torch.log_softmax(x, -1),
    "layer_norm": lambda x, s, b: F.layer_norm(x, (x.shape[-1],), s, b),
    "rms_norm": lambda x, s, _b: F.rms_norm(x, (x.shape[-1],), s),
    "group_norm": _group_norm,
    "sum": lambda x, _s, _b: x.sum(-1),
    "mean": lambda x, _s, _b: x.mean(-1),
    "amax": lambda x, _s, _b: x.amax(-1),
    "amin": lambda x, _s, _b: x.amin(-1),
    "prod": lambda x, _s, _b: x.prod(-1),
    "argmax": lambda x, _s, _b: x.argmax(-1),
    "column_sum": lambda x, _s, _b: x.sum(0),
}
WITH_GRADIENT = ("softmax", "log_softmax", "layer_norm", "rms_norm", "group_norm")


class Operator(nn.Module):
    """One operator with a scale and a bias, for those that take them."""

    def __init__(self, formula: Formula, columns: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.formula = formula
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, columns).to(dtype))
        self.bias = nn.Parameter(torch.linspace(-1, 1, columns).to(dtype))

    def forward(self, x: Tensor) -> Tensor:
        return self.formula(x, self.scale, self.bias)


class Contest:
    """One operator at one row length under every variant."""

    def __init__(self, name: str, columns: int, options: argparse.Namespace) -> None:
        dtype = getattr(torch, options.dtype)
        generator = torch.Generator().manual_seed(0)
        rows = max(64, options.elements // columns // 64 * 64)
        self.x = torch.randn(rows, columns, generator=generator).to(dtype)
        self.differentiated = name in WITH_GRADIENT
        model = Operator(OPERATORS[name], columns, dtype)
        self.models: dict[str, nn.Module] = {"eager": model, "ours": ORTModule(model)}
        if options.compile:
            self.models["compile"] = torch.compile(model)  # type: ignore[assignment]
        self.dy = torch.randn(model(self.x).shape, generator=generator).to(dtype)

    def step_ms(self, model: nn.Module) -> tuple[float, float]:
        """Milliseconds of forward and of backward."""
        x = self.x.detach().requires_grad_(self.differentiated)
        model.zero_grad(set_to_none=True)
        start = time.process_time_ns()
        with torch.set_grad_enabled(self.differentiated):
            y = model(x)
        middle = time.process_time_ns()
        if self.differentiated:
            y.backward(self.dy)
        return (middle - start) / 1e6, (time.process_time_ns() - middle) / 1e6

    def measure(self, rounds: int) -> dict[str, tuple[float, float]]:
        """The best times of every variant."""
        best = dict.fromkeys(self.models, (float("inf"), float("inf")))
        for round_ in range(rounds + 2):
            for name, model in self.models.items():
                times = self.step_ms(model)
                if round_ >= 2:
                    forward, backward = best[name]
                    best[name] = min(forward, times[0]), min(backward, times[1])
        return best


def _cell(ours: float, eager: float) -> str:
    ratio = ours / eager
    style = "red" if ratio > 1.05 else "green"
    return f"[{style}]{ratio:.2f}[/{style}]"


def _add_rows(table: Table, name: str, options: argparse.Namespace) -> None:
    for columns in options.columns:
        torch._dynamo.reset()
        contest = Contest(name, columns, options)
        best = contest.measure(options.rounds)
        eager = best.pop("eager")
        cells = [name, str(columns), f"{eager[0]:.2f}"]
        cells += [_cell(times[0], eager[0]) for times in best.values()]
        if contest.differentiated:
            cells += [f"{eager[1]:.2f}"]
            cells += [_cell(times[1], eager[1]) for times in best.values()]
        table.add_row(*cells)


def main() -> int:
    """Measures the operators and row lengths of the command line and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operators", nargs="*", default=list(OPERATORS), choices=list(OPERATORS))
    lengths = [2, 3, 4, 7, 8, 16, 33, 64, 128, 257, 768, 1024, 4096]
    parser.add_argument("--columns", type=int, nargs="*", default=lengths)
    parser.add_argument("--elements", type=int, default=1 << 20)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float64"])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--core", type=int, default=default_core())
    parser.add_argument("--compile", action="store_true", help="torch.compile beside us")
    options = parser.parse_args()
    os.sched_setaffinity(0, {options.core})
    torch.set_num_threads(1)
    variants = ["ours", "compile"] if options.compile else ["ours"]
    table = Table(title=f"rows of {options.dtype}, {options.elements} elements in all")
    table.add_column("operator")
    table.add_column("columns", justify="right")
    for part in ("forward", "backward"):
        for heading in (f"eager {part} ms", *(f"{v} {part}" for v in variants)):
            table.add_column(heading, justify="right")
    for name in options.operators:
        _add_rows(table, name, options)
    Console(width=100).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
