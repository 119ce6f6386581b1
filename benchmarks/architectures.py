"""Whether architectures that people train give eager's results under ORTModule, and how much is compiled.

Each is trained for one step at five batch shapes (a batch of one among them), without dropout, and
evaluated once, in a process of its own: in eager PyTorch, in float64 and in the engine. Outputs,
gradients (which are None, their values, dtypes and strides) and buffers are compared: an error may
be twice eager's own, or 1e-4 of the largest value.

  compiled    operators with a gradient that the engine runs, of those that eager PyTorch records:
              below 100 % where Dynamo breaks the graph or leaves a whole function to eager PyTorch
  dispatcher  nodes that torch's dispatcher runs for the engine, of all nodes of all captures
  captures    over the five shapes; 1 and 2 is what Dynamo needs where it treats a size of 1 apart
  breaks      graph breaks; eager: pieces left to eager PyTorch
  peak        planned and measured bytes: == equal, ~ where the plan says that it is a lower bound
  error       largest error of a gradient, as a part of the largest gradient; eager: float32's own

The exit status is 1 if any architecture trains wrongly, crashes or raises an error.

    python -m benchmarks.architectures --only llama unet
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.architecture_images import IMAGES
from benchmarks.architecture_models import MODELS
from benchmarks.architecture_transformers import TRANSFORMERS
from benchmarks.processes import RESULTS, ROOT, default_core

Row = dict[str, Any]

_GOOD = ("same", "sensitive")


def available() -> list[str]:
    """Names of the architectures that can be built here."""
    found = importlib.util.find_spec("transformers") is not None
    return [*MODELS, *IMAGES, *(TRANSFORMERS if found else ())]


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = available()
    parser.add_argument("--only", nargs="+", default=names, choices=names, metavar="NAME")
    parser.add_argument("--timeout", type=float, default=300, help="seconds per architecture (300)")
    parser.add_argument("--core", type=int, default=default_core(), help="core to pin to")
    parser.add_argument("--list", action="store_true", help="print the names and end")
    return parser.parse_args(arguments)


def measure(name: str, options: argparse.Namespace) -> Row:
    """The row of one architecture; a process that dies or hangs is a row too."""
    log = RESULTS / "logs" / f"architecture-{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "benchmarks.architecture_worker", name, str(options.core)]
    quiet = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0"}
    start = time.perf_counter()
    with log.open("w") as errors:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=dict(os.environ) | quiet,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        try:
            output, _ = process.communicate(timeout=options.timeout)
            ending = f"the process ended with status {process.returncode}"
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
            ending = f"not done in {options.timeout:.0f} s"
    row: Row = {"name": name}
    at = "the start"
    for message in _messages(output):
        at = message.get("at", at)
        row = message.get("row", row)
    if "report" not in row and "error" not in row:
        row["error"] = f"{at}: {ending}"
    row["seconds"] = time.perf_counter() - start
    return row | {"verdict": verdict(row)}


def _messages(output: str) -> Iterator[Row]:
    for line in output.splitlines():
        if line.startswith(('{"at"', '{"row"')):
            yield json.loads(line)


def verdict(row: Row) -> str:
    """`same`; `sensitive` where a rounding moves eager as much; or what is wrong: `differs`, `fails`."""
    if "error" in row:
        return "fails"
    if row["problems"]:
        return "differs"
    return "sensitive" if row["sensitive"] else "same"


def compiled_share(row: Row) -> float:
    """How much of what eager PyTorch records for backward the engine runs, in the last step."""
    left, recorded = row["outside"]
    return 1.0 - min(left / max(recorded, 1), 1.0)


# ---- the table -----------------------------------------------------------------------------------


def _cells(row: Row) -> list[str]:
    report = row["report"]
    total, outside = report["nodes_total"], report["nodes_aten_fallback"]
    planned, measured = report["planned_peak_bytes"], report["measured_peak_bytes"]
    equal = "==" if planned == measured else f"{planned} / {measured}"
    return [
        f"{compiled_share(row):.0%}",
        f"{outside}/{total}",
        str(report["captures"]),
        str(len(report["graph_breaks"])),
        str(len(report["eager_pieces"])),
        equal if report["prediction_exact"] else f"~ {equal}",
        f"{row['gradient_error']:.1e}",
        f"{row['eager_error']:.1e}",
        f"{row['first_step_s']:.1f}",
    ]


def table(rows: list[Row]) -> Table:
    """A line per architecture."""
    result = Table(title="Five batch shapes of training and one evaluation, beside eager PyTorch")
    result.add_column("architecture")
    columns = ("compiled", "dispatcher", "captures", "breaks", "eager pieces", "peak")
    for column in (*columns, "error", "eager", "first step s"):
        result.add_column(column, justify="right")
    result.add_column("verdict")
    for row in rows:
        color = "green" if row["verdict"] in _GOOD else "red"
        cells = _cells(row) if "report" in row else ["-"] * 9
        result.add_row(row["name"], *cells, f"[{color}]{row['verdict']}[/{color}]")
    return result


def _explain(row: Row, console: Console) -> None:
    """Why a row is not all `same`, one capture and no breaks."""
    name = escape(row["name"])
    for text in ([row["error"]] if "error" in row else []) + row.get("problems", [])[:4]:
        console.print(f"[red]{name}[/red] {escape(text)}", highlight=False)
    report = row.get("report", {"graph_breaks": [], "eager_pieces": [], "captures": 0})
    for text in sorted(set(report["graph_breaks"])):
        console.print(f"{name} graph break: {escape(text)}", highlight=False)
    for text in row.get("skipped", []):
        console.print(f"{name} skipped by Dynamo: {escape(text)}", highlight=False)
    for text in sorted(set(report["eager_pieces"])):
        console.print(f"{name} in eager PyTorch: {escape(text)}", highlight=False)
    if report["captures"] > 2:
        for text in (reason[:300] for reason in row["recaptures"][:4]):
            console.print(f"{name} captured again: {escape(text)}", highlight=False)


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, write the results; 1 if anything is not as in eager PyTorch."""
    options = parse_arguments(arguments)
    console = Console(width=None if sys.stdout.isatty() else 180)
    if options.list:
        console.print(" ".join(available()))
        return 0
    started = datetime.datetime.now(datetime.timezone.utc)
    path = RESULTS / f"architectures-{started:%Y%m%d-%H%M%S}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    for name in options.only:
        rows.append(measure(name, options))
        # After each row, so that a run that is ended early leaves what it found.
        path.write_text(json.dumps({"options": vars(options), "rows": rows}, indent=1) + "\n")
        console.print(f"[dim]{name}: {rows[-1]['verdict']}, {rows[-1]['seconds']:.0f} s[/dim]")
    console.print(table(rows))
    for row in rows:
        _explain(row, console)
    same = sum(row["verdict"] in _GOOD for row in rows)
    console.print(f"{same} of {len(rows)} architectures train as in eager PyTorch")
    console.print(f"written to {path.relative_to(ROOT)}")
    return 0 if same == len(rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
