"""`python -m benchmarks.solver`: what the budget chooses against an integer program.

The program (scipy's HiGHS) knows every kept value with its bytes, its lifetime and the time that
recomputing its kind costs, and minimizes that time under the budget at every step of the plan. It
does not know what recomputation itself holds, so a solution that does not fit when it is planned is
asked for again with less, until one fits: the optimum of the program that is a plan. Times are
estimates of the same model, peaks are planned.
"""

from __future__ import annotations

import argparse
import copy
import sys
from typing import Any

import numpy
import torch
from rich.console import Console
from rich.table import Table
from scipy.optimize import Bounds, LinearConstraint, milp

from benchmarks import models
from ortmodule_py import DebugOptions, LogLevel, ORTModule
from ortmodule_py.report.plan_table import training_piece

PERCENTS = (90, 80, 70, 60, 50, 40)
_ATTEMPTS = 25


def planned_piece(name: str, layers: int | None, budget: str) -> Any:
    """The compiled piece of a model under a budget, after its first step; None if it does not fit."""
    torch._dynamo.reset()
    base = models.make(name, layers=layers)
    options = DebugOptions(log_level=LogLevel.ERROR)
    model = ORTModule(copy.deepcopy(base.module), options, memory_budget=budget)
    try:
        model(**base.batch(base.batch_size)).backward()
    except RuntimeError as error:
        if "[memory budget] the step must fit" not in str(error):
            raise
        return None
    return training_piece(model._compiler)


class Program:
    """The integer program of one piece; a variable per kept value that can be recomputed."""

    def __init__(self, piece: Any) -> None:
        self.piece = piece
        facts = piece.memory()
        self.before = facts["before"]
        timeline = piece.timeline(False)
        steps, forward = timeline["steps"], timeline["forward_steps"]
        storages = {storage["name"]: storage for storage in timeline["storages"]}
        live = numpy.zeros(steps)
        for storage in timeline["storages"]:
            live[storage["first_step"] : storage["last_step"] + 1] += storage["bytes"]
        boundaries = {name for group in facts["layers"] for name in group["boundaries"]}
        self.stashes: list[int] = []
        costs, columns = [], []
        cost_of_row = self._costs(facts)
        for number, stash in enumerate(facts["stashes"]):
            ways = [p for p in stash["plans"] if p["strategy"] == 1]
            known = [storages[name] for name in stash["values"] if name in storages]
            if not ways or not known or boundaries & set(stash["values"]):
                continue
            freed = numpy.zeros(steps)
            for storage in known:
                begin = max(storage["first_step"] + 2, 0)
                freed[begin : storage["last_step"]] += storage["bytes"]
            self.stashes.append(number)
            costs.append(cost_of_row[ways[0]["cluster_id"]])
            columns.append(freed)
        self.costs = numpy.array(costs)
        # Steps with the same values alive differ in the rest alone: only the fullest one binds.
        self.freed = numpy.array(columns).T
        self.live = live
        self.forward = forward

    def _costs(self, facts: dict[str, Any]) -> dict[str, float]:
        costs = {}
        for number, row in enumerate(facts["rows"]):
            if row["strategy"] == 1:
                alone = self.piece.row_figures(number)
                change = max(alone["time_us"] - self.before["time_us"], 0.0)
                costs[row["cluster_id"]] = change / row["frequency"]
        return costs

    def solve(self, limit: float) -> list[int] | None:
        """The values to recompute so that no step holds more than `limit` bytes."""
        needed = self.live - limit
        rows = needed > 0
        if not rows.any():
            return []
        found = milp(
            self.costs,
            constraints=LinearConstraint(self.freed[rows], lb=needed[rows]),
            integrality=numpy.ones(len(self.costs)),
            bounds=Bounds(0, 1),
            options={"time_limit": 20, "mip_rel_gap": 1e-4},
        )
        if found.x is None:
            return None
        return [s for s, x in zip(self.stashes, found.x, strict=True) if x > 0.5]

    def optimum(self, budget: int) -> dict[str, Any] | None:
        """Figures of the cheapest solution that fits when it is planned."""
        limit = float(budget)
        for _ in range(_ATTEMPTS):
            chosen = self.solve(limit)
            if chosen is None:
                return None
            figures: dict[str, Any] = self.piece.decision_figures([(s, 1) for s in chosen])
            if figures["peak_bytes"] <= budget:
                return figures
            limit -= max(figures["peak_bytes"] - budget, budget / 200)
        return None


def compare(name: str, layers: int | None, percent: int) -> dict[str, Any] | None:
    """Ours and the program's step time at one budget; None below the least peak."""
    piece = planned_piece(name, layers, f"activations:{percent}%")
    if piece is None:
        return None
    facts = piece.memory()
    budget = facts["before"]["peak_bytes"] * percent // 100
    optimum = Program(piece).optimum(budget)
    before = facts["before"]["time_us"]
    return {
        "model": name,
        "percent": percent,
        "ours": facts["after"]["time_us"] / before,
        "program": optimum["time_us"] / before if optimum else None,
        "ours_peak": facts["after"]["peak_bytes"] / budget,
        "program_peak": optimum["peak_bytes"] / budget if optimum else None,
        "seconds": piece.facts()["stages_ms"]["optimize_memory"] / 1e3,
    }


def main() -> int:
    """Prints the comparison; the exit status is 1 if a plan is over 1 % slower than the program's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=["gpt", "bert", "t5", "vit", "resnet"])
    parser.add_argument("--layers", type=int, default=None)
    options = parser.parse_args()
    torch.set_num_threads(1)
    table = Table(title="step time against no recomputation (estimates), at a budget")
    for column in ("model", "budget", "ours", "program", "ours / program", "seconds"):
        table.add_column(column, justify="right")
    worst = 0.0
    for name in options.models:
        for percent in PERCENTS:
            row = compare(name, options.layers, percent)
            if row is None:
                break
            program = row["program"]
            ratio = row["ours"] / program if program else None
            worst = max(worst, ratio or 0.0)
            table.add_row(
                name,
                f"{percent} %",
                f"{row['ours']:.4f}",
                f"{program:.4f}" if program else "none fits",
                f"{ratio:.4f}" if ratio else "",
                f"{row['seconds']:.2f}",
            )
    Console(width=100).print(table)
    print(f"worst ratio {worst:.4f}")
    return int(worst > 1.01)


if __name__ == "__main__":
    sys.exit(main())
