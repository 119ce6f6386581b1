"""`python -m benchmarks.exactness`: gradients bit by bit, whatever the memory optimizer recomputes.

Every benchmark model runs at levels 0, 1 and 2, with each plan row switched on alone, and under
eight budgets, dropout 0.1 where the model has any. A run is two forwards of different shapes in
flight with one under `no_grad` between them, and their backward passes in reverse order; its
gradients and buffers must equal those of level 0 (`torch.equal`).
"""

from __future__ import annotations

import argparse
import copy
import os
import sys
from collections.abc import Iterator
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks import models
from ortmodule_py import ORTModule
from ortmodule_py.report.plan_table import training_piece

BUDGETS = 8
WITHOUT_DROPOUT = ("resnet", "mlp", "unet", "densenet", "llama")
CHOICES = ("ORTMODULE_MEMORY_OPT_LEVEL", "ORTMODULE_MEMORY_OPT_CONFIG")


def _results(base: models.BenchmarkModel, budget: int | None = None) -> tuple[Any, list[Tensor]]:
    """The facts of the memory optimizer, and all gradients and buffers after the run."""
    torch._dynamo.reset()
    module = copy.deepcopy(base.module)
    model = ORTModule(module, memory_budget=budget and f"activations:{budget}")
    batch, other = base.batch(3), base.batch(2, seed=1)
    torch.manual_seed(5)
    first = model(**batch)
    with torch.no_grad():
        model(**other)
    second = model(**other)
    second.backward()
    first.backward()
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
    facts = training_piece(model._compiler).memory()
    return facts, [first.detach(), second.detach(), *gradients, *module.buffers()]


def _choices(facts: Any) -> Iterator[tuple[str, dict[str, str]]]:
    """Levels 1 and 2, then each row alone, as environment variables."""
    for level in ("1", "2"):
        yield f"level {level}", {"ORTMODULE_MEMORY_OPT_LEVEL": level}
    for row in facts["rows"]:
        config = f"{row['cluster_id']}:{row['strategy']}:-1"
        yield config, {"ORTMODULE_MEMORY_OPT_CONFIG": config}


def measure(name: str, layers: int) -> tuple[int, list[str]]:
    """How many decisions were tried on a model, and those whose results differ from level 0."""
    options: dict[str, Any] = {} if name in ("resnet", "unet") else {"layers": layers}
    base = models.make(name, dropout=None if name in WITHOUT_DROPOUT else 0.1, **options)
    for variable in CHOICES:
        os.environ.pop(variable, None)
    facts, wanted = _results(base)
    differing, count = [], 0

    def compare(label: str, results: list[Tensor]) -> None:
        nonlocal count
        count += 1
        same = len(results) == len(wanted) and all(map(torch.equal, results, wanted))
        if not same:
            differing.append(label)

    for label, environment in _choices(facts):
        os.environ.update(environment)
        compare(label, _results(base)[1])
        for variable in environment:
            del os.environ[variable]
    facts = _results(base, facts["before"]["peak_bytes"])[0]
    peak, least = facts["before"]["peak_bytes"], facts["minimum_bytes"]
    for i in range(BUDGETS):
        budget = peak - (peak - least) * i // (BUDGETS - 1)
        compare(f"budget {budget:,}", _results(base, budget)[1])
    return count, differing


def main() -> int:
    """0 if no decision changes a bit."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exactness", description=__doc__)
    parser.add_argument(
        "--models", nargs="*", default=list(models.ALL_NAMES), choices=models.ALL_NAMES
    )
    parser.add_argument("--layers", type=int, default=2)
    options = parser.parse_args()
    os.environ.setdefault("ORTMODULE_LOG_LEVEL", "ERROR")
    table = Table(title="Decisions of the memory optimizer against level 0")
    for column in ("model", "decisions", "other bits"):
        table.add_column(column)
    failed = False
    console = Console(width=120)
    for name in options.models:
        count, differing = measure(name, options.layers)
        failed = failed or bool(differing)
        table.add_row(name, str(count), ", ".join(differing) or "none")
        console.print(f"[dim]{name}: {count} decisions, {len(differing)} with other bits[/dim]")
    console.print(table)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
