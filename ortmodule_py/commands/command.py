"""What a command is, and what commands share."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


class Unavailable(Exception):
    """The command cannot run in this installation; the message says why and what to do."""


@dataclass(frozen=True)
class Command:
    """A command: its line in the overview, and the function that takes the rest of the command line
    and returns the exit code."""

    summary: str
    run: Callable[[list[str]], int]
    module: str = ""
    """The module that a later or smaller version may lack."""
    runs_a_script: bool = False
    """Errors are those of the user's script, so they keep their traceback."""

    def is_there(self) -> bool:
        """Whether this version has the command's module."""
        return not self.module or _has(self.module)


def _has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def forwarded(
    summary: str, module: str, *, needs_torch: bool = False, runs_a_script: bool = False
) -> Command:
    """A command that is the `main` of a module."""

    def run(arguments: list[str]) -> int:
        if not _has(module):
            raise Unavailable(
                f"this version of ortmodule_py has no module {module}; install a later version"
            )
        if needs_torch:
            from ortmodule_py import _check_torch

            _check_torch()
        return int(importlib.import_module(module).main(arguments) or 0)

    return Command(summary, run, module, runs_a_script)


def parser(name: str, description: str, epilog: str = "") -> argparse.ArgumentParser:
    """A parser for the command `name`."""
    return argparse.ArgumentParser(
        prog=f"python -m ortmodule_py {name}",
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def given_sizes(words: Sequence[str]) -> dict[str, Any]:
    """Sizes of a command line: "batch=8" names a size, "x=8x16" is the shape of an input.

    Raises ValueError for anything else.
    """
    found: dict[str, Any] = {}
    for word in words:
        name, sign, text = word.partition("=")
        parts = text.split("x")
        if not sign or not name or not all(part.isdecimal() for part in parts):
            raise ValueError(
                f"[sizes] a size must be written as in batch=8 or x=8x16, but found {word!r}"
            )
        found[name] = int(text) if len(parts) == 1 else tuple(map(int, parts))
    return found


@contextmanager
def stage(what: str, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """Says on standard error what is going on and how long it took.

    Yields a function for news of its progress, which are shown on terminals only.
    """
    terminal = sys.stderr.isatty() and not quiet
    begin = time.perf_counter()
    if terminal:
        print(f"{what} ...", end="", file=sys.stderr, flush=True)

    def news(text: str) -> None:
        if terminal:
            print(f"\r\033[K{what}: {text}", end="", file=sys.stderr, flush=True)

    try:
        yield news
    except BaseException:
        if terminal:
            print(file=sys.stderr)
        raise
    if not quiet:
        start = "\r\033[K" if terminal else ""
        print(f"{start}{what}: {time.perf_counter() - begin:.2f} s", file=sys.stderr)
