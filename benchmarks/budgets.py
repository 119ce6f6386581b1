"""`python -m benchmarks.budgets`: predicted against measured peak, model by model, budget by budget.

The measured peak counts every tensor storage of the process between entry of forward and exit of
backward. Each model gets eight budgets between its peak without the optimizer and the least that it
reaches. Gradients are compared bit by bit with those of the first budget, dropout included. Then some
models run with gradients from before and an optimizer's state under a budget for all bytes, and over
fifty shapes; `--resident` compares the high-water mark of the resident set with the plan of a step of
over a gigabyte.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import os
import statistics
import sys
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks import models
from ortmodule_py import ORTModule, last_run_report
from ortmodule_py.report.plan_table import training_piece
from ortmodule_py.testing import (
    install_counting_allocator,
    measure_peak,
    reset_vm_hwm,
    vm_hwm_bytes,
    vm_rss_bytes,
)

BUDGETS = 8
SHAPES = 50


@dataclass
class Row:
    """One model under one budget."""

    model: str
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


def _planned(base: models.BenchmarkModel, budget: str) -> tuple[ORTModule, dict[str, Any]]:
    """A copy of the model after its first step under a budget, and the facts of its plan."""
    torch._dynamo.reset()
    model = ORTModule(copy.deepcopy(base.module), memory_budget=budget)
    _step(model, base.batch(base.batch_size))
    return model, training_piece(model._compiler).memory()


def reachable_budgets(base: models.BenchmarkModel) -> list[int]:
    """Budgets in bytes, evenly from the peak without the optimizer to the least that is reached."""
    _, facts = _planned(base, "activations:100%")
    peak, least = facts["before"]["peak_bytes"], facts["minimum_bytes"]
    return [peak - (peak - least) * i // (BUDGETS - 1) for i in range(BUDGETS)]


def measure(name: str) -> list[Row]:
    """Eight budgets of a model, all of them reachable."""
    base = models.make(name)
    batch = base.batch(base.batch_size)
    rows: list[Row] = []
    reference: list[torch.Tensor] | None = None
    for budget in reachable_budgets(base):
        model, facts = _planned(base, f"activations:{budget}")
        measured, gradients = _step(model, batch)
        reference = reference or gradients
        rows.append(
            Row(
                name,
                budget,
                facts["after"]["peak_bytes"],
                measured,
                all(torch.equal(a, b) for a, b in zip(reference, gradients, strict=True)),
                facts["after"]["time_us"] / facts["before"]["time_us"],
            )
        )
    return rows


def whole_device(name: str) -> dict[str, int]:
    """A budget for all bytes, with gradients from before and an optimizer's state: used and allowed."""
    base = models.make(name)
    parameters = sum(p.nbytes for p in base.module.parameters())
    buffers = sum(b.nbytes for b in base.module.buffers())
    peak, least = (reachable_budgets(base)[i] for i in (0, -1))
    # AdamW keeps two values per parameter; what a step still holds is part of the budget.
    allowed = 3 * parameters + buffers + (peak + least) // 2
    model = ORTModule(copy.deepcopy(base.module), memory_budget=allowed)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    batch = base.batch(base.batch_size)
    most = 0
    for _ in range(3):
        optimizer.zero_grad(set_to_none=True)
        held = sum(t.nbytes for s in optimizer.state.values() for t in s.values() if t.dim())
        with measure_peak() as measured:
            model(**batch).backward(torch.ones(()))
        most = max(most, measured.peak_above_start + parameters + buffers + held)
        optimizer.step()
    return {"allowed": allowed, "used": most}


def over_shapes(name: str) -> dict[str, float]:
    """Fifty shapes under one budget: overruns, and the worst error of a prediction."""
    base = models.make(name)
    peak, least = (reachable_budgets(base)[i] for i in (0, -1))
    budget = (peak + least) // 2
    model = ORTModule(copy.deepcopy(base.module), memory_budget=f"activations:{budget}")
    overruns, worst, captures = 0, 0.0, 0
    for number in range(SHAPES):
        batch = base.batch(1 + number % base.batch_size, 64 + 3 * number)
        measured, _ = _step(model, batch)
        planned = last_run_report(model)["planned_peak_bytes"]
        overruns += measured > budget
        worst = max(worst, abs(measured / planned - 1))
        captures = last_run_report(model)["captures"]
    return {"overruns": overruns, "worst": worst, "captures": captures}


def high_water() -> dict[str, float]:
    """The resident set of a step that plans over a gigabyte, against the plan."""
    base = models.make("gpt_fused", layers=12)
    model = ORTModule(base.module, memory_budget="activations:90%")
    batch = base.batch(24)
    for _ in range(2):
        _step(model, batch)
    model.zero_grad(set_to_none=True)
    reset_vm_hwm()
    resident = vm_rss_bytes()
    model(**batch).backward()
    planned = last_run_report(model)["planned_peak_bytes"]
    return {"planned": planned, "resident": vm_hwm_bytes() - resident}


def show(rows: list[Row], console: Console) -> bool:
    """Prints the table and the verdicts; True if all hold."""
    table = Table(title="Budget, predicted and measured peak (bytes)")
    for column in ("model", "budget", "predicted", "measured", "error", "bits", "time"):
        table.add_column(column, justify="left" if column == "model" else "right")
    for row in rows:
        table.add_row(
            row.model,
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
    parser.add_argument(
        "--models", nargs="*", default=list(models.ALL_NAMES), choices=models.ALL_NAMES
    )
    parser.add_argument("--settings", nargs="*", default=["gpt", "bert"], choices=models.ALL_NAMES)
    parser.add_argument("--resident", action="store_true", help="the resident set of a large step")
    options = parser.parse_args()
    os.environ.setdefault("ORTMODULE_LOG_LEVEL", "ERROR")
    install_counting_allocator()
    rows = [row for name in options.models for row in measure(name)]
    console = Console(width=120)
    good = show(rows, console) if rows else True
    for name in options.settings:
        whole, shapes = whole_device(name), over_shapes(name)
        good = good and whole["used"] <= whole["allowed"] and not shapes["overruns"]
        console.print(
            f"{name}: with gradients and AdamW's state {whole['used']:,} of {whole['allowed']:,} "
            f"bytes; {SHAPES} shapes: overruns {shapes['overruns']}, worst error "
            f"{shapes['worst']:.3%}, captures {shapes['captures']}"
        )
    if options.resident:
        water = high_water()
        error = water["resident"] / water["planned"] - 1
        console.print(
            f"resident set of a step: {water['resident']:,.0f} bytes, planned "
            f"{water['planned']:,.0f} ({error:+.1%})"
        )
        good = good and abs(error) <= 0.05
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
