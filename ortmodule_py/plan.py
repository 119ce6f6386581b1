"""`python -m ortmodule_py.plan train.py args...`: the plans of a training script, before it trains.

Runs the script up to its first planned training forward, prints the table of plans and exits
before any optimizer step. `--select 1,3 --out mem_opt.json` writes those rows as a configuration
for `ORTMODULE_MEMORY_OPT_CONFIG`.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any, NoReturn

from . import module as module_file
from .memory_report import plan_rows, table_lines, training_piece


class _Planned(BaseException):
    """Leaves the script; no `except Exception` of it stops this."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ortmodule_py.plan", description=str(__doc__).splitlines()[0]
    )
    parser.add_argument("--select", metavar="1,3", help="rows to write into --out")
    parser.add_argument("--out", metavar="mem_opt.json", type=Path, help="configuration to write")
    parser.add_argument("script", help="the training script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the script's own arguments")
    return parser


def _selected(text: str, rows: list[dict[str, Any]], parser: argparse.ArgumentParser) -> list[str]:
    chosen = []
    for part in text.split(","):
        if not part.strip().isdigit() or not 1 <= int(part) <= len(rows):
            parser.error(f"--select takes row numbers from 1 to {len(rows)}, but found {part!r}")
        chosen.append(rows[int(part) - 1]["config"])
    return chosen


def main(argv: list[str] | None = None) -> int:
    """Run the command; the exit code is 1 if the script ended without a planned forward."""
    parser = _parser()
    options = parser.parse_args(argv)
    if (options.select is None) != (options.out is None):
        parser.error("--select and --out belong together")
    if not Path(options.script).is_file():
        parser.error(f"the script must be a file, but found {options.script!r}")
    planned: list[Any] = []

    def stop(model: Any) -> NoReturn:
        planned.append(model)
        raise _Planned

    module_file.on_first_plan = stop
    sys.argv = [options.script, *options.arguments]
    sys.path.insert(0, str(Path(options.script).resolve().parent))
    os.environ.setdefault("ORTMODULE_LOG_LEVEL", "ERROR")
    try:
        runpy.run_path(options.script, run_name="__main__")
    except _Planned:
        pass
    finally:
        module_file.on_first_plan = None
    if not planned:
        print(f"{options.script} ended before an ORTModule ran a training forward", file=sys.stderr)
        return 1
    model = planned[0]
    piece = training_piece(model._compiler)
    request = model._engine_options.memory
    print("\n".join(table_lines(piece, request)))
    if options.select is not None:
        chosen = _selected(options.select, plan_rows(piece, request), parser)
        _write(options.out, chosen)
        print(f"wrote {options.out}: export ORTMODULE_MEMORY_OPT_CONFIG={options.out}")
    return 0


def _write(path: Path, elements: list[str]) -> None:
    """All or nothing: a half-written configuration would select something else."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(elements, indent=2) + "\n", encoding="utf-8")
    partial.replace(path)


if __name__ == "__main__":
    sys.exit(main())
