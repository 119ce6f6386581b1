"""`python -m benchmarks.budgets`: predicted against measured peak, model by model, budget by budget.

The measured peak counts every tensor storage of the process between entry of forward and exit of
backward. Budgets are percentages of the peak without the optimizer; one that is below the least
reachable peak is shown as the error that it is. Gradients are compared bit by bit with those of
the first budget, dropout included.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import os
import statistics
import sys
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table

from benchmarks import models
from ortmodule_py import ORTModule
from ortmodule_py.memory_report import training_piece
from ortmodule_py.testing import install_counting_allocator, measure_peak

PERCENTS = (100, 90, 80, 70, 60, 50, 40, 30)


@dataclass
class Row:
    """One model under one budget."""

    model: str
    percent: int
    budget_bytes: int
    predicted_bytes: int
    measured_bytes: int
    same_bits: bool
    model_time: float
    """Estimated step time against the one without the optimizer."""

    @property
    def error(self) -> float:
        """Relative error of the prediction."""
        return self.measured_bytes / self.predicted_bytes - 1


def _step(model: ORTModule, batch: models.Batch) -> tuple[int, list[torch.Tensor]]:
    torch.manual_seed(5)
    model.zero_grad(set_to_none=True)
    one = torch.ones(())  # autograd would make this gradient of the loss itself
    with measure_peak() as measured:
        model(**batch).backward(one)
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    return measured.peak_above_start, gradients


def measure(name: str) -> list[Row]:
    """All budgets of a model; those below the minimum are left out."""
    base = models.make(name)
    batch = base.batch(base.batch_size)
    rows: list[Row] = []
    reference: list[torch.Tensor] | None = None
    for percent in PERCENTS:
        torch._dynamo.reset()
        model = ORTModule(copy.deepcopy(base.module), memory_budget=f"activations:{percent}%")
        try:
            _step(model, batch)  # the first step compiles
        except RuntimeError as error:
            if "is the least that this model reaches" not in str(error):
                raise
            break
        measured, gradients = _step(model, batch)
        facts = training_piece(model._compiler).memory()
        reference = reference or gradients
        rows.append(
            Row(
                name,
                percent,
                facts["before"]["peak_bytes"] * percent // 100,
                facts["after"]["peak_bytes"],
                measured,
                all(torch.equal(a, b) for a, b in zip(reference, gradients, strict=True)),
                facts["after"]["time_us"] / facts["before"]["time_us"],
            )
        )
    return rows


def show(rows: list[Row], console: Console) -> bool:
    """Prints the table and the verdicts; True if all hold."""
    table = Table(title="Budget, predicted and measured peak (bytes)")
    for column in ("model", "budget", "allowed", "predicted", "measured", "error", "bits", "time"):
        table.add_column(column, justify="left" if column == "model" else "right")
    for row in rows:
        table.add_row(
            row.model,
            f"{row.percent}%",
            f"{row.budget_bytes:,}",
            f"{row.predicted_bytes:,}",
            f"{row.measured_bytes:,}",
            f"{row.error:+.3%}",
            "equal" if row.same_bits else "DIFFER",
            f"{row.model_time:.2f}",
        )
    console.print(table)
    errors = [abs(row.error) for row in rows]
    over = sum(row.measured_bytes > row.budget_bytes for row in rows)
    pairs = [(a, b) for a, b in itertools.pairwise(rows) if a.model == b.model]
    falling = all(
        b.measured_bytes <= a.measured_bytes and b.model_time >= a.model_time for a, b in pairs
    )
    same = all(row.same_bits for row in rows)
    console.print(
        f"{len(rows)} budgets: error median {statistics.median(errors):.3%}, "
        f"worst {max(errors):.3%}; overruns {over}; monotone {falling}; bits equal {same}"
    )
    return over == 0 and falling and same


def main() -> int:
    """0 if no budget is overrun, peaks and times are monotone and all bits are equal."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.budgets", description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(models.NAMES), choices=models.NAMES)
    options = parser.parse_args()
    os.environ.setdefault("ORTMODULE_LOG_LEVEL", "ERROR")
    install_counting_allocator()
    rows = [row for name in options.models for row in measure(name)]
    return 0 if show(rows, Console(width=120)) else 1


if __name__ == "__main__":
    sys.exit(main())
