"""ORTModule's curve of memory against time beside what people use instead, in one run.

Ours: levels 1 and 2, and budgets from 100 % of the step's peak down to the least that can be kept.
Peers: eager, per-block checkpointing, selective checkpointing (what matrix products, convolutions
and attention return is kept), and torch.compile with activation memory budgets. Every variant has
a process of its own, pinned to one core, and they take turns, round by round.

Peaks are those of forward and backward above idle, by the counting allocator: the activation peak
with gradients already there, as in gradient accumulation, and the fresh peak with gradients that
start as None, so that new ones count; budgets are about the latter. The time is processor time per
step, the median over all rounds. All are also given as ratios to eager. Gradients are those of one
step without dropout, compared with eager in float64; they agree if their error is at most twice
eager's own, or 1e-4 of the model's largest gradient. BatchNorm statistics after that step tell
whether they were updated once.

A peer's point lies below our curve if no point of ours has at most its memory and at most its time,
by either peak.

    python -m benchmarks.peers --models gpt bert --core 0
    python -m benchmarks.peers --show benchmarks/results/peers-*.json
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks import models, variants
from benchmarks.peers_chart import draw
from benchmarks.processes import RESULTS, ROOT, default_core
from benchmarks.run import LEAST_ROUND_S, ModelRun, machine

Row = dict[str, Any]

PERCENTS = ("100", "90", "80", "70", "60", "50", "40", "30", "20")
COMPILE_BUDGETS = ("1", "0.8", "0.5", "0.2", "0.1", "0")
PEAK, FRESH, TIME = "activation_peak_bytes", "fresh_peak_bytes", "processor_ms"
_UNREACHABLE = "[memory budget] the step must fit"
_MIB = 1 << 20


def variant_names(*, quick: bool, compile_budgets: Sequence[str]) -> list[str]:
    """Every variant of a model: eager, ours, then the peers."""
    percents = ("60",) if quick else PERCENTS
    return [
        *("eager", "ours1", "ours2"),
        *(f"ours_budget_{percent}" for percent in percents),
        *("ours_least", "checkpoint", "selective"),
        *(f"compile_budget_{budget}" for budget in compile_budgets),
    ]


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line, with the variants to run."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--models", nargs="+", default=list(models.NAMES), choices=models.NAMES)
    parser.add_argument("--steps", type=int, default=3, help="least steps per round (3)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds per variant (5)")
    parser.add_argument("--timeout", type=float, default=600, help="seconds for any one answer")
    parser.add_argument("--core", type=int, default=default_core(), help="core to pin to")
    compiled = parser.add_mutually_exclusive_group()
    compiled.add_argument("--skip-compile", action="store_true", help="leave out torch.compile")
    compiled.add_argument(
        "--compile-budgets",
        nargs="+",
        metavar="FRACTION",
        help=f"activation memory budgets of torch.compile ({' '.join(COMPILE_BUDGETS)})",
    )
    parser.add_argument(
        "--gradients",
        choices=("all", "ours", "none"),
        default="all",
        help="whose gradients to compare; compiled ones are compiled once more without dropout",
    )
    parser.add_argument(
        "--quick", action="store_true", help="one round of two steps, one budget of each kind"
    )
    parser.add_argument(
        "--show", nargs="+", type=Path, metavar="JSON", help="print results of former runs"
    )
    options = parser.parse_args(arguments)
    options.least_s = 0.0 if options.quick else LEAST_ROUND_S
    if options.quick:
        options.steps, options.rounds = 2, 1
    budgets = options.compile_budgets or (("0.5",) if options.quick else COMPILE_BUDGETS)
    options.variants = variant_names(
        quick=options.quick, compile_budgets=() if options.skip_compile else budgets
    )
    try:
        for variant in options.variants:
            variants.check(variant)
    except ValueError as error:
        parser.error(str(error))
    return options


def measured(rows: list[Row], *, ours: bool) -> list[Row]:
    """Our rows, or those of the peers (eager among them), that have a peak and a time."""
    return [
        row
        for row in rows
        if PEAK in row and TIME in row and variants.is_ours(row["variant"]) == ours
    ]


def points_below(rows: list[Row], peak: str = PEAK) -> list[tuple[Row, list[Row]]]:
    """Peers' points that no point of ours equals or beats in both, each with ours that it beats."""
    curve = measured(rows, ours=True)
    below = []
    for peer in measured(rows, ours=False):
        if any(row[peak] <= peer[peak] and row[TIME] <= peer[TIME] for row in curve):
            continue
        beaten = [row for row in curve if peer[peak] <= row[peak] and peer[TIME] <= row[TIME]]
        below.append((peer, beaten))
    return below


def _gradients_text(row: Row, eager: Row) -> str:
    error, own = row.get("gradient_error"), eager.get("gradient_error")
    if error is None or own is None:
        return "-"
    return f"{error:.1e}" + ("" if error <= max(2 * own, 1e-4) else " [red]WRONG[/red]")


def _statistics_text(row: Row) -> str:
    error = row.get("statistics_error")
    if error is None:
        return "-"
    # A second update moves a running mean by nine tenths; float32 alone by a millionth.
    return "once" if error < 1e-3 else "[red]not once[/red]"


def print_table(model: str, rows: list[Row], console: Console) -> None:
    """One model: peaks and times with their ratios to eager."""
    table = Table(title=f"{model}: forward + backward on one core")
    table.add_column("variant")
    names = ("activation MiB", "of eager", "fresh MiB", "of eager", "processor ms", "of eager")
    for name in (*names, "gradient error"):
        table.add_column(name, justify="right")
    statistics = any(row.get("statistics_error") is not None for row in rows)
    if statistics:
        table.add_column("statistics updated")
    eager = next(row for row in rows if row["variant"] == "eager")
    for row in rows:
        cells = [row["variant"]]
        if PEAK in row and TIME in row:
            for key, scale in ((PEAK, _MIB), (FRESH, _MIB), (TIME, 1)):
                ratio = f"{row[key] / eager[key]:.2f}" if key in eager else "-"
                cells += [f"{row[key] / scale:.1f}", ratio]
            cells.append(_gradients_text(row, eager))
            cells += [_statistics_text(row)] if statistics else []
        else:
            unreachable = _UNREACHABLE in str(row["error"])
            cells.append("[dim]out of reach[/dim]" if unreachable else "[red]failed[/red]")
        table.add_row(*cells)
    console.print(table)
    for row in rows:
        if row["error"] and _UNREACHABLE not in row["error"]:
            text = escape(f"{model} {row['variant']}: {row['error']}")
            console.print(f"[red]failed[/red] {text}")


def print_below(model: str, rows: list[Row], console: Console) -> int:
    """The peers' points below our curve by either peak, and how many they are."""
    if not measured(rows, ours=True) or not measured(rows, ours=False):
        console.print(f"{model}: nothing to compare: one side was not measured")
        return 0
    count = 0
    for key, title in ((PEAK, "activation"), (FRESH, "fresh")):
        for peer, beaten in points_below(rows, key):
            names = ", ".join(row["variant"] for row in beaten) or "none of ours in both"
            everything = " (ALL of ours)" if len(beaten) == len(measured(rows, ours=True)) else ""
            console.print(
                f"{model}: {peer['variant']} lies below our curve: {title} peak "
                f"{peer[key] / _MIB:.1f} MiB, {peer[TIME]:.1f} ms; it beats {names}{everything}"
            )
            count += 1
    if not count:
        console.print(f"{model}: no peer's point lies below our curve")
    return count


def print_rows(rows: list[Row], console: Console) -> None:
    """Tables of all models, then the peers' points below our curves."""
    by_model = [(m, list(group)) for m, group in itertools.groupby(rows, lambda r: r["model"])]
    for model, of_model in by_model:
        print_table(model, of_model, console)
    for model, of_model in by_model:
        print_below(model, of_model, console)


def show(paths: list[Path], console: Console) -> int:
    """Print and draw the results of former runs; a model's last run counts."""
    latest: dict[str, list[Row]] = {}
    for path in sorted(paths):
        for model, group in itertools.groupby(
            json.loads(path.read_text())["rows"], lambda row: row["model"]
        ):
            latest[model] = list(group)
    rows = [row for model in models.NAMES for row in latest.get(model, [])]
    print_rows(rows, console)
    chart = RESULTS / "peers.png"
    draw(rows, chart)
    console.print(f"drawn to {chart.relative_to(ROOT)}")
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Run all variants of all models, print, write the results and draw them."""
    options = parse_arguments(arguments)
    console = Console(width=None if sys.stdout.isatty() else 120)
    if options.show:
        return show(options.show, console)
    started = datetime.datetime.now(datetime.timezone.utc)
    path = RESULTS / f"peers-{started:%Y%m%d-%H%M%S}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    for model in options.models:
        with tempfile.TemporaryDirectory(prefix="bench-kernels-") as kernels:
            run = ModelRun(model, options, console, kernel_cache=kernels)
            run.run_single()
        rows.extend(run.rows.values())
        document = {"machine": machine(), "options": vars(options), "rows": rows}
        path.write_text(json.dumps(document, indent=1, default=str) + "\n")
    print_rows(rows, console)
    draw(rows, path.with_suffix(".png"))
    console.print(f"written to {path.relative_to(ROOT)} and {path.with_suffix('.png').name}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
