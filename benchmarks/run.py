"""ORTModule beside eager PyTorch, per-block checkpointing and torch.compile, in one run.

Every (model, variant) has a process of its own, and the variants of a model take turns, round by
round, so that a machine that slows down slows all of them. A step is forward and backward, with
gradients that start as None; the optimizer's step is the same for everybody and is left out. A
round has at least ``--steps`` steps and lasts at least a quarter of a second.

Times: processor time per step (median) of a process pinned to one core, wall time per step at
several threads that do not spin, and the first step, with cold compiler caches, on the one core.

Bytes, by the counting allocator, in the training state (parameters, optimizer state):
  activation peak  above idle, over forward and backward, with gradients already there
  fresh peak       the same with gradients set to None before, so that new ones count
  total peak       over a whole step, everything that the process has in tensors
  VmHWM            growth of the resident set over forward and backward, gradients from None

Gradient error: max over parameters of |g - g64| over the model's largest |g64|, where g64 comes
from eager in float64; dropout is off for this comparison only.

    python -m benchmarks.run --models gpt bert --variants eager compile ours1
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import sys
from contextlib import ExitStack
from typing import Any

import torch
from rich.console import Console

from benchmarks import models, variants
from benchmarks.processes import RESULTS, WorkerError, WorkerProcess, default_core
from benchmarks.tables import print_tables

Row = dict[str, Any]
LEAST_ROUND_S = 0.25
"""A round of a variant goes on at least so long, so that tiny steps are timed with warm caches."""


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=list(models.NAMES), choices=models.NAMES)
    parser.add_argument(
        "--variants",
        nargs="+",
        default=list(variants.DEFAULT),
        type=variants.check,
        help=variants.HELP,
    )
    parser.add_argument("--steps", type=int, default=5, help="least steps per round (5)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds per variant (3)")
    parser.add_argument("--threads", type=int, default=2, help="threads of the wall time (2)")
    parser.add_argument("--timeout", type=float, default=420, help="seconds for any one answer")
    parser.add_argument("--core", type=int, default=default_core(), help="core to pin to")
    parser.add_argument(
        "--gradients", choices=("ours", "all", "none"), default="ours", help="whose error to check"
    )
    parser.add_argument(
        "--quick", action="store_true", help="one round of two steps, one thread only"
    )
    options = parser.parse_args(arguments)
    options.least_s = LEAST_ROUND_S
    if options.quick:
        options.steps, options.rounds, options.threads, options.least_s = 2, 1, 0, 0.0
    return options


class ModelRun:
    """All variants of one model, each in a process that lives as long as this object."""

    def __init__(
        self,
        model: str,
        options: argparse.Namespace,
        console: Console,
        kernel_cache: str | None = None,
    ) -> None:
        self.model = model
        self.kernel_cache = kernel_cache
        self.options = options
        self.console = console
        self.rows: dict[str, Row] = {
            v: {"model": model, "variant": v, "error": None} for v in options.variants
        }

    def _ask(self, worker: WorkerProcess, command: str, **arguments: Any) -> Row | None:
        row = self.rows[worker.variant]
        try:
            return worker.ask(command, **arguments)
        except WorkerError as error:
            row["error"] = row["error"] or str(error)
            worker.close()
            return None

    def _start(self, stack: ExitStack, threads: int) -> list[tuple[WorkerProcess, Row]]:
        """Start each variant and run its first step, one after the other."""
        workers = []
        for variant, row in self.rows.items():
            if row["error"]:
                continue
            config = {"model": self.model, "variant": variant, "threads": threads}
            config["core"] = self.options.core if threads == 1 else None
            self.console.print(f"[dim]{self.model} {variant}: {threads} thread(s)[/dim]")
            worker = WorkerProcess(
                config, timeout_s=self.options.timeout, kernel_cache=self.kernel_cache
            )
            stack.callback(worker.close)
            for command in ("setup", "first", "warm"):
                if not row["error"]:
                    answer = self._ask(worker, command) or {}
                    row.update(answer if threads == 1 else {})
            if not row["error"]:
                workers.append((worker, row))
        return workers

    def _rounds(self, workers: list[tuple[WorkerProcess, Row]], key: str, name: str) -> None:
        times: dict[str, list[float]] = {}
        for _ in range(self.options.rounds):
            for worker, row in workers:
                if row["error"]:
                    continue
                answer = self._ask(
                    worker, "steps", count=self.options.steps, least_s=self.options.least_s
                )
                if answer is not None:
                    times.setdefault(worker.variant, []).extend(answer[key])
        for variant, values in times.items():
            self.rows[variant][name] = statistics.median(values)
            self.rows[variant][name + "_all"] = values

    def run_single(self) -> None:
        """Processor time on one core, memory, and gradient errors."""
        with ExitStack() as stack:
            workers = self._start(stack, 1)
            self._rounds(workers, "processor_ms", "processor_ms")
            for worker, row in workers:
                if not row["error"]:
                    row.update(self._ask(worker, "memory") or {})
                if not row["error"] and self._wants_gradients(worker.variant):
                    row.update(self._ask(worker, "gradients") or {})
                worker.close()  # its memory, for the others

    def _wants_gradients(self, variant: str) -> bool:
        if self.options.gradients == "ours":
            return variant == "eager" or variants.is_ours(variant)
        return bool(self.options.gradients == "all")

    def run_threads(self) -> None:
        """Wall time at several threads, in new processes: inductor compiles for a thread count."""
        with ExitStack() as stack:
            workers = self._start(stack, self.options.threads)
            self._rounds(workers, "wall_ms", "wall_ms")


def machine() -> Row:
    """Processor and versions, for the results file."""
    processor = platform.processor()
    try:
        with open("/proc/cpuinfo") as file:
            names = [line.partition(":")[2].strip() for line in file if "model name" in line]
        processor = names[0] if names else processor
    except OSError:
        pass
    return {
        "processor": processor,
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmarks, print the tables, write the results."""
    options = parse_arguments(arguments)
    console = Console(width=None if sys.stdout.isatty() else 160)
    started = datetime.datetime.now(datetime.timezone.utc)
    path = RESULTS / f"{started:%Y%m%d-%H%M%S}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    for model in options.models:
        run = ModelRun(model, options, console)
        run.run_single()
        if options.threads > 1:
            run.run_threads()
        rows.extend(run.rows.values())
        document = {"machine": machine(), "options": vars(options), "rows": rows}
        path.write_text(json.dumps(document, indent=1, default=str) + "\n")
    print_tables(rows, console, threads=options.threads)
    console.print(f"written to {path.relative_to(RESULTS.parent.parent)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
