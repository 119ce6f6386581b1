"""`python -m tools.gpu_check`: does the CUDA build compute what it should, and how fast?

It builds nothing. Parts run in an order in which the first minutes say most, each in processes of its
own with a time limit: a hang or a crash costs the row that was under way. With `--jobs` correctness is
checked in so many processes, and then times are taken. Rows are written to a JSON
file as they come, and the next run goes on where the last one stopped, with what failed at the end. It
ends with a table. Without a GPU it says what it would run, and runs the parts that need none if this
build has the CUDA kernels compiled for the host; with `--require-gpu` that is an error.
"""

from __future__ import annotations

import argparse
import math
import select
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import ortmodule_py

from . import table
from .driver import Entry, Results, Run, Worker
from .part import Part
from .parts import PARTS

_WORKER = (sys.executable, "-m", "tools.gpu_check.worker")


def entry_of(part: Part) -> Entry:
    """A part with the process that does it."""
    command = (*_WORKER, part.name)
    return Entry(part.name, tuple(part.rows()), part.limit_s, command, part.row_s, part.timed)


def _machine(folder: Path) -> dict[str, Any]:
    """Asked of a process, so that this one holds no context on the GPU."""
    log = folder / "machine.log"
    worker = Worker((*_WORKER, "machine"), log)
    said, _, _ = select.select([worker.read], [], [], 120.0)
    events = worker.events() if said else None
    if worker.end(10.0 if said else 0.0) != 0 or not events:
        raise SystemExit(f"the GPU's name must be readable, but found: {worker.last_line()}")
    facts = events[0]["facts"]
    return {k: v for k, v in facts.items() if k not in ("ok", "why", "seconds")}


def _announce(parts: Sequence[Part]) -> None:
    for number, part in enumerate(parts, 1):
        print(
            f"  {number:2}. {part.name:17} {len(part.rows()):3} rows, at most {part.limit_s:3.0f} s"
            f"  {part.what}"
        )
    total = sum(part.limit_s for part in parts)
    print(f"  at most {total / 60:.0f} minutes if every part took its limit; --seconds bounds it")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.gpu_check", description=__doc__)
    names = [part.name for part in PARTS]
    parser.add_argument(
        "parts", nargs="*", help=f"only these, or those that begin with them: {', '.join(names)}"
    )
    parser.add_argument("--results", type=Path, default=Path("build/gpu_check.json"))
    parser.add_argument("--seconds", type=float, default=math.inf, help="for all parts together")
    parser.add_argument(
        "--jobs", type=int, default=1, help="processes side by side; parts that time run alone"
    )
    parser.add_argument("--dry-run", action="store_true", help="list the parts and run nothing")
    parser.add_argument("--again", action="store_true", help="forget what ran before")
    parser.add_argument("--require-gpu", action="store_true", help="fail where there is no GPU")
    options = parser.parse_args(arguments)
    unknown = [w for w in options.parts if not any(name.startswith(w) for name in names)]
    if unknown:
        parser.error(f"there is no part {', '.join(unknown)}; there are {', '.join(names)}")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the parts; 1 if anything is wrong or left to do."""
    options = _options(arguments)
    chosen = [
        part for part in PARTS if not options.parts or part.name.startswith(tuple(options.parts))
    ]
    if options.dry_run:
        _announce(chosen)
        return 0
    there = torch.cuda.is_available()
    emulated = not there and ortmodule_py.build_info()["cuda_emulation"]
    if options.require_gpu and not there:
        print("a GPU is required, but torch finds none")
        return 1
    if not there:
        print("no GPU was found; on one this would run:")
        _announce(chosen)
        chosen = [part for part in chosen if part.on_host]
        if not emulated:
            print("this build does not hold the CUDA kernels compiled for the host, so nothing ran")
            return 0
        print("the parts that need no GPU run through the CUDA kernels compiled for the host:")
        if not chosen:
            return 0
    folder = options.results.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    if options.again:
        options.results.unlink(missing_ok=True)
    results = Results.load(options.results, _machine(folder))
    run = Run(results, options.seconds, lambda *row: print(table.line(*row), flush=True))
    entries = [entry_of(part) for part in chosen]
    try:
        run.all(entries, options.jobs)
    except KeyboardInterrupt:
        print("interrupted: run this again for the rest")
    return 1 if table.table(results, entries) else 0


if __name__ == "__main__":
    sys.exit(main())
