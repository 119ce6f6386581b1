"""`python -m ortmodule_py plan train.py args...`: the plan table of a training script, before it trains.

Runs the script up to its first planned training forward, prints the plan table and exits before any
optimizer step. `--select 1,3 --out mem_opt.json` writes these rows as a configuration for
`ORTMODULE_MEMORY_OPT_CONFIG`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ortmodule_py import module as module_file
from ortmodule_py.explain import why_no_plan
from ortmodule_py.inference.replaced_file import replaced_file
from ortmodule_py.options.engine import EngineOptions
from ortmodule_py.report.plan_table import step_pieces, step_rows, step_table, training_piece


class _Stopped(BaseException):
    """Ends the script; `except Exception` does not catch it."""


class _Watch:
    """Ends a script at its first plan, or at an optimizer step before any plan.

    It raises, so that `finally` blocks of the script run. If a bare `except` of the script catches the
    exception, the next call of any module or optimizer ends the process.
    """

    def __init__(self, finish: Callable[[], int]) -> None:
        self._finish = finish
        self.planned: Any = None
        """The first module with a plan."""
        self.unplanned: Any = None
        """The last module that ran a training forward without a plan."""
        self.stopped = False
        self._hooks: list[Any] = []

    def __enter__(self) -> _Watch:
        module_file.on_training_forward = self._after_forward
        self._hooks.append(register_optimizer_step_pre_hook(self._before_step))
        return self

    def __exit__(self, *_: object) -> None:
        module_file.on_training_forward = None
        for hook in self._hooks:
            hook.remove()

    def _after_forward(self, model: Any) -> None:
        if training_piece(model._compiler) is None:
            self.unplanned = model
            return
        if self.planned is None:
            self.planned = model
        self._stop()

    def _before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        parameters = (p for group in optimizer.param_groups for p in group["params"])
        if self.stopped or any(p.grad is not None for p in parameters):
            self._stop()

    def _stop(self) -> NoReturn:
        if self.stopped:
            self._leave()
        self.stopped = True
        self._hooks.append(register_module_forward_pre_hook(self._leave))
        raise _Stopped

    def _leave(self, *_: Any) -> NoReturn:
        """Ends the process, as the script has caught the exception."""
        code = 1
        try:
            code = self._finish()
        except SystemExit as wrong:
            code = wrong.code if isinstance(wrong.code, int) else 1
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ortmodule_py plan", description=str(__doc__).splitlines()[0]
    )
    parser.add_argument("--select", metavar="1,3", help="rows to write into --out")
    parser.add_argument("--out", metavar="mem_opt.json", type=Path, help="configuration to write")
    parser.add_argument("script", help="the training script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the script's own arguments")
    return parser


def _check(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Reports all errors that can be found before the script starts."""
    if (options.select is None) != (options.out is None):
        parser.error("--select and --out belong together")
    if options.select is not None:
        if re.fullmatch(r"\s*[1-9][0-9]*\s*(,\s*[1-9][0-9]*\s*)*", options.select) is None:
            parser.error(
                "--select takes row numbers from 1 on, separated by commas, but found "
                f"{options.select!r}; write it as in --select 1,3"
            )
        folder = options.out.parent
        if not os.access(folder, os.W_OK) or not folder.is_dir():
            parser.error(
                f"--out must be in a folder that can be written, but found {str(folder)!r}; make it "
                "or name another"
            )
        if options.out.is_dir():
            parser.error(f"--out must be a file, but found the folder {str(options.out)!r}")
    if not Path(options.script).is_file():
        parser.error(f"the script must be a file, but found {options.script!r}")
    try:
        bypass = EngineOptions.from_environment().bypass
    except ValueError as error:
        parser.error(str(error))
    if bypass:
        parser.error(
            "[ORTMODULE_BYPASS] plans are those of the engine, but found ORTMODULE_BYPASS=1, with "
            "which eager PyTorch would train the script; unset it"
        )


def _selected(text: str, rows: list[dict[str, Any]], parser: argparse.ArgumentParser) -> list[str]:
    chosen = []
    for part in text.split(","):
        if int(part) > len(rows):
            parser.error(f"--select takes row numbers from 1 to {len(rows)}, but found {part!r}")
        chosen.append(rows[int(part) - 1]["config"])
    return chosen


def main(argv: list[str] | None = None) -> int:
    """Runs the command; the exit code is 1 if the script ended without a planned training forward."""
    parser = _parser()
    options = parser.parse_args(argv)
    _check(options, parser)
    sys.argv = [options.script, *options.arguments]
    sys.path.insert(0, str(Path(options.script).resolve().parent))
    os.environ.setdefault("ORTMODULE_LOG_LEVEL", "ERROR")
    with _Watch(lambda: _finish(watch, options, parser)) as watch:
        try:
            runpy.run_path(options.script, run_name="__main__")
        except BaseException:
            if not watch.stopped:  # otherwise `_Stopped`, or an error that it caused
                raise
    return _finish(watch, options, parser)


def _finish(watch: _Watch, options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Prints the plan table and writes the selected rows."""
    if watch.planned is None:
        event = "came to an optimizer step" if watch.stopped else "ended"
        why = f"{options.script} {event} before an ORTModule ran a training forward"
        if watch.unplanned is not None:
            why = f"[plan] {why_no_plan(watch.unplanned, ran=True)}"
        print(why, file=sys.stderr)
        return 1
    pieces = step_pieces(watch.planned._compiler)
    request = watch.planned._engine_options.memory
    print("\n".join(step_table(pieces, request)))
    if options.select is not None:
        chosen = _selected(options.select, step_rows(pieces, request), parser)
        _write(options.out, chosen)
        print(f"wrote {options.out}: export ORTMODULE_MEMORY_OPT_CONFIG={options.out}")
    return 0


def _write(path: Path, elements: list[str]) -> None:
    """Replaces the file atomically: a partial configuration would select other rows."""
    with replaced_file(path) as part:
        part.write_text(json.dumps(elements, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
