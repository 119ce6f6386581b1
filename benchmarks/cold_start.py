"""How long the first step of a model takes, and the first step at a new shape.

The first step of ORTModule is shown by stage, beside Dynamo's own tracing (``torch.compile`` with
``backend="eager"``, which traces and guards but compiles nothing; dynamo-marked does so with the
symbolic sizes that ORTModule asks for at once; ratios are to it) and ``torch.compile`` with inductor. Each runs in a
process of its own with cold compiler caches. What a step takes anyway is measured at the same shape
and taken off, so the figures are overhead alone.

The second shape is where a compiler may start over with symbolic sizes; the third should be free.
For ORTModule the time of the new plan is printed by itself, as a step's time varies by more.

    python -m benchmarks.cold_start
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks import models, variants
from benchmarks.processes import RESULTS, WorkerError, WorkerProcess, default_core

Row = dict[str, Any]

# In-process compilation, so that the compiler's processor time is counted too.
COMPILE = "compile:TORCHINDUCTOR_COMPILE_THREADS=1"


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="bert", choices=models.ALL_NAMES)
    parser.add_argument(
        "--layers", type=int, default=12, help="of models that are a chain of layers"
    )
    parser.add_argument(
        "--variants",
        nargs="+",
        type=variants.check,
        default=["eager", "dynamo", "dynamo-marked", "ours", COMPILE],
        help=variants.HELP,
    )
    parser.add_argument("--timeout", type=float, default=600, help="seconds for any one answer")
    return parser.parse_args(arguments)


def measure(options: argparse.Namespace, variant: str) -> Row:
    """Run one variant; the row says why when it fails."""
    row: Row = {"variant": variant, "error": None, "shapes": []}
    config = {
        "model": options.model,
        "variant": variant,
        "layers": options.layers if models.has_layers(options.model) else None,
        "threads": 1,
        "core": default_core(),
    }
    batch = 2
    try:
        with WorkerProcess(config | {"batch_size": batch}, timeout_s=options.timeout) as worker:
            worker.ask("setup")
            row.update(worker.ask("first"))
            row.update(worker.ask("steps", count=3))
            for size, length in ((batch + 1, 112), (batch + 2, 96), (batch + 3, 80)):
                row["shapes"].append(worker.ask("new_shape", batch_size=size, length=length))
    except WorkerError as error:
        row["error"] = str(error)
    return row


def overhead_s(row: Row) -> float:
    """Processor seconds that the first step took beyond a later one."""
    return float(row["first_processor_s"] - min(row["processor_ms"]) / 1e3)


def print_tables(rows: list[Row], console: Console, title: str) -> None:
    """The overhead of the first step and of new shapes, then ORTModule's stages."""
    table = Table(title=title)
    table.add_column("variant")
    columns = ("first step s", "of it overhead", "x Dynamo", "wall s", "2nd shape ms", "3rd", "4th")
    for column in columns:
        table.add_column(column, justify="right")
    by_variant = {row["variant"]: row for row in rows if not row["error"]}
    dynamo = by_variant.get("dynamo-marked", by_variant.get("dynamo"))
    for row in rows:
        if row["error"]:
            table.add_row(escape(row["variant"]), "[red]failed[/red]")
            continue
        ratio = "-" if dynamo is None else f"{overhead_s(row) / overhead_s(dynamo):.2f}"
        cells = [f"{row['first_processor_s']:.2f}", f"{overhead_s(row):.2f}", ratio]
        cells.append(f"{row['first_wall_s']:.2f}")
        for shape in row["shapes"]:
            extra = shape["new_shape_processor_ms"] - shape["again_processor_ms"]
            cells.append(f"{extra:.0f}")
        table.add_row(escape(row["variant"]), *cells)
    console.print(table)
    for row in rows:
        if row["error"]:
            console.print(f"[red]{escape(row['variant'])} failed:[/red] {escape(row['error'])}")
        elif row["stages_ms"]:
            _print_stages(row, console)
            _print_new_shapes(row, console)


def _print_stages(row: Row, console: Console) -> None:
    own: dict[str, float] = row["stages_ms"]
    # Wall time, as the stages are.
    total = row["first_wall_s"] * 1e3 - min(row["wall_ms"])
    stages = own | {"Dynamo's tracing and guards (the rest)": total - sum(own.values())}
    table = Table(title=f"Stages of the first step, {escape(row['variant'])} (wall time)")
    table.add_column("stage")
    table.add_column("ms", justify="right")
    table.add_column("share", justify="right")
    for stage, milliseconds in stages.items():
        table.add_row(stage, f"{milliseconds:.1f}", f"{milliseconds / (total or 1):.0%}")
    table.add_row("sum", f"{total:.1f}", "")
    console.print(table)


def _print_new_shapes(row: Row, console: Console) -> None:
    plans = ", ".join(f"{shape['plans_ms']:.1f}" for shape in row["shapes"])
    captures = sum(shape["captures"] for shape in row["shapes"])
    console.print(
        f"{escape(row['variant'])}: planning took {plans} ms at the 2nd, 3rd and 4th shape, "
        f"with {captures} new captures"
    )


def main(arguments: list[str] | None = None) -> int:
    """Measure every variant, print, write the results."""
    options = parse_arguments(arguments)
    console = Console(width=None if sys.stdout.isatty() else 160)
    rows = []
    for variant in options.variants:
        console.print(f"[dim]{options.model}: {variant}[/dim]")
        rows.append(measure(options, variant))
    layers = f", {options.layers} layers" if models.has_layers(options.model) else ""
    title = (
        f"{options.model}{layers}: processor time on one core; "
        "new shapes: beyond a second step at that shape"
    )
    print_tables(rows, console, title)
    started = datetime.datetime.now(datetime.timezone.utc)
    path = RESULTS / f"cold-start-{started:%Y%m%d-%H%M%S}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"options": vars(options), "rows": rows}
    path.write_text(json.dumps(document, indent=1, default=str) + "\n")
    console.print(f"written to {path.relative_to(RESULTS.parent.parent)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
