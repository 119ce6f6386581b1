"""The command line. Each module of this package that has a `COMMAND` is a command of its name."""

from __future__ import annotations

import importlib
import pkgutil
import sys
import traceback
from collections.abc import Sequence

from ortmodule_py.commands.command import Command, Unavailable

_PROGRAM = "python -m ortmodule_py"
_FOOT = f"""
`{_PROGRAM} COMMAND --help` describes a command.
Exit codes: 0 done, 1 failed or problems found, 2 wrong arguments, 130 interrupted.
--traceback before the command shows where in the program an error was raised."""


def commands() -> dict[str, Command]:
    """All commands by name."""
    found = {}
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        command = getattr(importlib.import_module(module.name), "COMMAND", None)
        if command is not None:
            found[module.name.rpartition(".")[2]] = command
    return found


def overview() -> str:
    """What there is, a line each."""
    lines = [f"usage: {_PROGRAM} COMMAND ...", ""]
    for name, command in commands().items():
        absent = "" if command.is_there() else " (not in this version)"
        lines.append(f"  {name:<18}{command.summary}{absent}")
    return "\n".join([*lines, _FOOT])


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line, that of the process if None. Returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    shows_traceback = given[:1] == ["--traceback"]
    given = given[shows_traceback:]
    if not given or given[0] in ("-h", "--help", "help"):
        print(overview())
        return 0
    if given[0] == "--version":
        from ortmodule_py import __version__

        print(__version__)
        return 0
    known = commands()
    command = known.get(given[0].replace("-", "_"))
    if command is None:
        print(
            f"[command line] a command must be one of {', '.join(known)}, but found {given[0]!r}",
            file=sys.stderr,
        )
        return 2
    return _guarded(command, given[1:], shows_traceback)


def _guarded(command: Command, arguments: list[str], shows_traceback: bool) -> int:
    """Runs it. Errors are messages here, except those of a user's script."""
    try:
        return command.run(arguments)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader, such as `head`, has enough
        sys.stderr.close()
        return 0
    except Unavailable as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except (RuntimeError, ValueError, TypeError, OSError, ImportError, MemoryError) as error:
        if command.runs_a_script:
            raise
        if shows_traceback:
            traceback.print_exc()
        print(f"error: {error or type(error).__name__}", file=sys.stderr)
        return 1
