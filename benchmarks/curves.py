"""Training curves of ORTModule beside the curves that eager PyTorch itself may give.

Floating-point sums depend on their order, so eager has no single curve: another number of threads
or another instruction set gives another one, and training makes the difference grow. How far apart
those equally good curves are is the band that ORTModule has to stay in. Each variant trains in a
process of its own, from the same weights and on the same batches:

  eager 1         the reference: eager PyTorch, one thread
  eager 2         two threads
  eager 1 avx2    one thread, kernels and libraries told to use nothing wider than AVX2
  eager 1 f64     one thread in float64, which all others approximate: the reference's own error
  ours 1, ours 2  ORTModule, one and two threads

The band at a step is the largest |loss difference| to the reference up to that step, for one or
several of the eager variants. ORTModule is inside when its own difference at each step is no larger
(plain band), or no larger than FACTOR times that plus one float32 rounding of the loss (wide band:
a few curves are a small sample). Both are printed.

A ReLU or a maximum that falls on the other side of a tie by one rounding makes curves part at once,
so they come in bundles: what counts then is which of eager's bundles ORTModule's curve follows.

    python -m benchmarks.curves --model gpt --steps 200 --rng torch --dropout 0.1
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.curve_worker import TASKS
from benchmarks.processes import RESULTS, ROOT, default_core

Run = dict[str, Any]

FACTOR = 3.0
REFERENCE = "eager 1"
EXACT = "eager 1 f64"
AVX2 = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
}
# Threads, whether ORTModule runs it, whether in float64, and its environment.
VARIANTS: dict[str, tuple[int, bool, bool, dict[str, str]]] = {
    REFERENCE: (1, False, False, {}),
    "eager 2": (2, False, False, {}),
    "eager 1 avx2": (1, False, False, AVX2),
    EXACT: (1, False, True, {}),
    "ours 1": (1, True, False, {}),
    "ours 2": (2, True, False, {}),
}
BANDS = (("eager 2",), ("eager 1 avx2",), (EXACT,), ("eager 2", "eager 1 avx2", EXACT))


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=sorted(TASKS), default="gpt")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dropout", type=float, default=0.0, help="needs --rng torch")
    parser.add_argument("--rng", choices=("philox", "torch"), default="philox")
    parser.add_argument("--timeout", type=float, default=900, help="seconds for any one variant")
    parser.add_argument("--plot", type=Path, help="write the curves to this PNG")
    options = parser.parse_args(arguments)
    if options.dropout and options.rng != "torch":
        parser.error("with --dropout, curves can be compared under --rng torch only")
    return options


def run_variant(name: str, options: argparse.Namespace, folder: Path) -> Run:
    """Train one variant in a process of its own."""
    threads, ours, double, variables = VARIANTS[name]
    path = folder / f"{name.replace(' ', '-')}.pt"
    config = {
        "model": options.model,
        "steps": options.steps,
        "seed": options.seed,
        "dropout": options.dropout,
        "threads": threads,
        "core": default_core() if threads == 1 else None,
        "ours": ours,
        "double": double,
        "path": str(path),
    }
    environment = dict(os.environ) | {
        "PYTHONPATH": os.pathsep.join(
            [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])],
        ),
        "OMP_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "PASSIVE",
        "ORTMODULE_RNG": options.rng,
        "ORTMODULE_LOG_LEVEL": "ERROR",
    }
    subprocess.run(
        [sys.executable, "-m", "benchmarks.curve_worker", json.dumps(config)],
        env=environment | variables,
        check=True,
        timeout=options.timeout,
    )
    result: Run = torch.load(path)
    return result


def differences(run: Run, reference: Run) -> list[float]:
    """|loss difference| at each step."""
    pairs = zip(run["losses"], reference["losses"], strict=True)
    return [abs(a - b) for a, b in pairs]


def running_max(values: list[float]) -> list[float]:
    """The largest value so far."""
    return list(itertools.accumulate(values, max))


def state_distance(run: Run, reference: Run) -> tuple[float, str, float]:
    """Largest |p - r| / max |r| over all parameters and statistics, its name, and |p - r| / |r|."""
    worst, where = 0.0, ""
    difference = norm = 0.0
    for name, other in reference["state"].items():
        delta = run["state"][name] - other
        relative = (delta.abs().max() / other.abs().max()).item()
        if not relative <= worst:
            worst, where = relative, name
        difference += delta.square().sum().item()
        norm += other.square().sum().item()
    return worst, where, (difference / norm) ** 0.5


def verdict(ours: list[float], band: list[float], losses: list[float]) -> Run:
    """How far the curve leaves the plain and the wide band."""
    ulp = torch.finfo(torch.float32).eps
    wide = [FACTOR * b + ulp * abs(loss) for b, loss in zip(band, losses, strict=True)]
    outside = [step for step, (a, b) in enumerate(zip(ours, band, strict=True)) if not a <= b]
    outside_wide = [step for step, (a, b) in enumerate(zip(ours, wide, strict=True)) if not a <= b]
    ratios = [a / b for a, b in zip(running_max(ours), band, strict=True) if b > 0]
    return {
        "plain_outside": len(outside),
        "wide_outside": len(outside_wide),
        "first_outside": outside[0] if outside else None,
        "ratio_at_end": ratios[-1] if ratios else None,
    }


def print_runs(runs: dict[str, Run], console: Console) -> list[Run]:
    """One row per variant: its distance to the reference and to float64."""
    table = Table(title="Distance to the reference (eager 1)")
    table.add_column("variant")
    columns = ("last loss", "max loss difference", "at step", "same bits until", "loss to f64")
    for column in (*columns, "worst parameter, relative", "all parameters", "same random numbers"):
        table.add_column(column, justify="right")
    reference, rows = runs[REFERENCE], []
    for name, run in runs.items():
        apart = differences(run, reference)
        exact = max(differences(run, runs[EXACT]))
        worst, where, all_parameters = state_distance(run, reference)
        largest = max(apart)
        row = {
            "variant": name,
            "last_loss": run["losses"][-1],
            "max_difference": largest,
            "max_difference_to_f64": exact,
            "same_until": next((s for s, d in enumerate(apart) if d), len(apart)),
            "worst_parameter": worst,
            "worst_parameter_name": where,
            "all_parameters": all_parameters,
            "same_generator": torch.equal(run["generator"], reference["generator"]),
            "report": run["report"],
        }
        rows.append(row)
        cells = [f"{row['last_loss']:.6f}", f"{largest:.2e}", str(apart.index(largest))]
        cells += [str(row["same_until"]), f"{exact:.2e}", f"{worst:.1e} {where}"]
        cells += [f"{all_parameters:.1e}", "yes" if row["same_generator"] else "no"]
        table.add_row(name, *cells)
    console.print(table)
    return rows


def print_verdicts(runs: dict[str, Run], console: Console) -> list[Run]:
    """One row per ORTModule variant and band."""
    table = Table(title=f"ORTModule against the band (wide: {FACTOR:g} x and one rounding)")
    for column in ("variant", "band from"):
        table.add_column(column)
    columns = ("band at end", "ours / band at end", "steps outside plain", "first", "outside wide")
    for column in columns:
        table.add_column(column, justify="right")
    table.add_column("verdict")
    reference, rows = runs[REFERENCE], []
    for name, sources in itertools.product(("ours 1", "ours 2"), BANDS):
        apart = [differences(runs[band_run], reference) for band_run in sources]
        band = running_max([max(at_step) for at_step in zip(*apart, strict=True)])
        row = verdict(differences(runs[name], reference), band, reference["losses"])
        row |= {"variant": name, "band": list(sources), "band_at_end": band[-1]}
        rows.append(row)
        if not row["plain_outside"]:
            text = "inside the plain band"
        elif not row["wide_outside"]:
            text = "inside the wide band"
        else:
            text = "the band is empty: same bits" if not band[-1] else "outside"
        first, ratio = row["first_outside"], row["ratio_at_end"]
        cells = [f"{band[-1]:.2e}", "-" if ratio is None else f"{ratio:.2f}"]
        cells += [str(row["plain_outside"]), "-" if first is None else str(first)]
        source = "all of them" if sources == BANDS[-1] else sources[0]
        table.add_row(name, source, *cells, str(row["wide_outside"]), text)
    console.print(table)
    return rows


def plot(runs: dict[str, Run], title: str, path: Path) -> None:
    """Losses above, differences to the reference below."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (above, below) = pyplot.subplots(2, 1, figsize=(9, 8), sharex=True)
    for number, (name, run) in enumerate(runs.items()):
        style = {"label": name, "linewidth": 0.9, "color": f"C{number}"}
        above.plot(run["losses"], **style)
        if name != REFERENCE:
            # Equal bits have no place on a logarithmic axis.
            apart = [d or float("nan") for d in differences(run, runs[REFERENCE])]
            below.plot(apart, **style)
    above.set_ylabel("loss")
    below.set_ylabel(f"|loss - loss of {REFERENCE}|")
    below.set_yscale("log")
    below.set_xlabel("step")
    for axes in (above, below):
        axes.legend(fontsize="small")
        axes.grid(alpha=0.3)
    above.set_title(title)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main(arguments: list[str] | None = None) -> int:
    """Train all variants, print, write the results."""
    options = parse_arguments(arguments)
    console = Console(width=None if sys.stdout.isatty() else 160)
    title = f"{options.model}, {options.steps} steps, dropout {options.dropout:g}"
    title += f", generator {options.rng}" if options.dropout else ""
    runs: dict[str, Run] = {}
    with tempfile.TemporaryDirectory(prefix="curves-") as folder:
        for name in VARIANTS:
            console.print(f"[dim]{title}: {name}[/dim]")
            runs[name] = run_variant(name, options, Path(folder))
    document = {"options": vars(options), "runs": print_runs(runs, console)}
    document["verdicts"] = print_verdicts(runs, console)
    document["losses"] = {name: run["losses"] for name, run in runs.items()}
    console.print(f"ORTModule: {runs['ours 1']['report']}")
    if options.plot:
        plot(runs, title, options.plot)
    write_results(document, options.model, console)
    return 0


def write_results(document: Run, model: str, console: Console) -> None:
    """Keep what was measured beside the results of the other benchmarks."""
    started = datetime.datetime.now(datetime.timezone.utc)
    path = RESULTS / f"curves-{model}-{started:%Y%m%d-%H%M%S}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1, default=str) + "\n")
    console.print(f"written to {path.relative_to(ROOT)}")


if __name__ == "__main__":
    raise SystemExit(main())
