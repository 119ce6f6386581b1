"""`python -m tools.gpu_check`: does the CUDA build compute what it should, and how fast?

It builds nothing. Each part writes its rows to a JSON file as it goes, and the next run goes on where
the last one stopped, with what failed at the end; no part takes more than eight minutes at a time. An
error that breaks the GPU for the process ends the run, and the next one does the rest. It ends with a
table. Without a GPU it says what it would run, and runs the parts that need none if this build has the
CUDA kernels compiled for the host; with `--require-gpu` that is an error.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import ortmodule_py

from .convolutions import CONVOLUTIONS
from .memory import BUDGETS
from .operators import OPERATORS
from .optimizers import OPTIMIZERS
from .part import PART_SECONDS, Context, Part, Row, began
from .speed import SPEED
from .training import EXACTNESS, GRAPHS, OWN_GRAPHS, PARITY, PRECISION

PARTS: tuple[Part, ...] = (
    OPERATORS,
    PARITY,
    PRECISION,
    EXACTNESS,
    GRAPHS,
    OWN_GRAPHS,
    CONVOLUTIONS,
    OPTIMIZERS,
    BUDGETS,
    SPEED,
)
_HIDDEN = {"ok", "why", "seconds", "budgets", "tries"}


def _load(path: Path, machine: dict[str, Any]) -> dict[str, Any]:
    """The results so far, if they are of this machine and build."""
    if path.exists():
        known: dict[str, Any] = json.loads(path.read_text())
        if known.get("machine") == machine:
            return known
        print(f"{path} holds another machine's or build's results and is replaced")
    return {"machine": machine, "parts": {}}


def _machine(emulated: bool) -> dict[str, Any]:
    info = ortmodule_py.build_info()
    there = torch.cuda.is_available()
    module = Path(ortmodule_py._C.__file__).read_bytes()
    return {
        "device": "host, emulated"
        if emulated
        else torch.cuda.get_device_name()
        if there
        else "none",
        "torch": torch.__version__,
        "version": info["version"],
        "module": hashlib.sha256(module).hexdigest()[:16],
        "targets": info["cuda"].get("targets", []),
    }


def _run_part(part: Part, context: Context, results: dict[str, Any], path: Path) -> bool:
    """Runs what is left of the part; False if the device is lost to this process."""
    rows: dict[str, Row] = results["parts"].setdefault(part.name, {})
    context.known = rows
    context.deadline = time.monotonic() + PART_SECONDS
    for name in context.todo(part.rows()):
        rows[name] = began(rows.get(name))
        path.write_text(json.dumps(results, indent=1))
        torch._dynamo.reset()  # captures of the row before
        start = time.monotonic()
        try:
            row = part.run(name, context)
        except Exception as error:
            lines = str(error).strip().splitlines() or [""]
            row = {"ok": False, "why": f"{type(error).__name__}: {lines[0][:200]}"}
        row["seconds"] = round(time.monotonic() - start, 1)
        lost = context.lost()
        if lost:
            row |= {
                "ok": False,
                "why": f"{row['why']}; the GPU was lost to the process".lstrip("; "),
            }
        rows[name] = row
        path.write_text(json.dumps(results, indent=1))
        print(_line(part.name, name, row), flush=True)
        if lost:
            return False
    return True


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, dict):
        return "/".join(_shown(v / 2**30 if v > 1e7 else v) for v in value.values())
    return ",".join(map(_shown, value)) if isinstance(value, list) else str(value)


def _line(part: str, name: str, row: Row) -> str:
    facts = " ".join(f"{k}={_shown(v)}" for k, v in row.items() if k not in _HIDDEN)
    state = "ok  " if row["ok"] else "FAIL"
    return f"{state} {part:10} {name:24} {row['seconds']:6.1f}s  {facts}  {row['why']}".rstrip()


def _table(results: dict[str, Any]) -> int:
    """Prints all rows; returns how many are wrong or missing."""
    wrong = 0
    print(f"\n{json.dumps(results['machine'])}")
    for part in PARTS:
        rows = results["parts"].get(part.name)
        if rows is None:
            continue
        for name, row in rows.items():
            print(_line(part.name, name, row))
            wrong += not row["ok"]
        missing = [name for name in part.rows() if name not in rows]
        if missing:
            print(f"todo {part.name:10} {len(missing)} rows left: run this again")
            wrong += len(missing)
    print("all is well" if not wrong else f"{wrong} rows are wrong or missing")
    return wrong


def _announce(parts: Sequence[Part]) -> None:
    print("no GPU was found; on one this would run:")
    for part in parts:
        print(f"  {part.name:10} {len(part.rows()):3} rows  {part.what}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the parts; 1 if anything is wrong or left to do."""
    parser = argparse.ArgumentParser(prog="python -m tools.gpu_check", description=__doc__)
    names = [part.name for part in PARTS]
    parser.add_argument("parts", nargs="*", help=f"only these: {', '.join(names)}")
    parser.add_argument("--results", type=Path, default=Path("build/gpu_check.json"))
    parser.add_argument("--again", action="store_true", help="forget what ran before")
    parser.add_argument("--require-gpu", action="store_true", help="fail where there is no GPU")
    options = parser.parse_args(arguments)
    unknown = set(options.parts) - set(names)
    if unknown:
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    chosen = [part for part in PARTS if not options.parts or part.name in options.parts]
    there = torch.cuda.is_available()
    emulated = not there and ortmodule_py.build_info()["cuda_emulation"]
    if options.require_gpu and not there:
        print("a GPU is required, but torch finds none")
        return 1
    if not there:
        _announce(chosen)
        chosen = [part for part in chosen if part.on_host]
        if not emulated:
            print("this build does not hold the CUDA kernels compiled for the host, so nothing ran")
            return 0
        print("the parts that need no GPU run through the CUDA kernels compiled for the host:")
    options.results.parent.mkdir(parents=True, exist_ok=True)
    if options.again:
        options.results.unlink(missing_ok=True)
    results = _load(options.results, _machine(emulated))
    context = Context(torch.device("cpu" if emulated else "cuda:0"), emulated)
    for part in chosen:
        if not _run_part(part, context, results, options.results):
            print("an error has broken the GPU for this process: run this again for the rest")
            break
    return 1 if _table(results) else 0


if __name__ == "__main__":
    sys.exit(main())
