"""Sizes that a line of the program turns into constants, so that each value of them is a capture.

Dynamo keeps them symbols; but an operator that torch has no symbolic sizes for, or a comparison with
a number, leaves the guard that a size is what it is.
"""

from __future__ import annotations

import linecache
from typing import Any

import sympy
import torch
from torch.utils._traceback import shorten_filename


class FixedSizes:
    """The lines that fixed a size for one module, and to which value."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, str], int] = {}

    def found_again(self) -> list[str]:
        """The lines that fixed a size in the capture that is being made, and to another value before."""
        context = torch._guards.TracingContext.try_get()
        shape_env: Any = getattr(getattr(context, "fake_mode", None), "shape_env", None)
        again = []
        for guard in getattr(shape_env, "guards", ()):
            line = getattr(getattr(guard, "sloc", None), "maybe_user_loc", None)
            value = _fixed_value(guard.expr)
            if line is None or value is None:
                continue
            if self.is_another(line, guard.expr.lhs.name, value):
                again.append(_place(line))
        return again

    def is_another(self, line: str, symbol: str, value: int) -> bool:
        """Whether the line fixed this size to another value before.

        The name of a symbol says whose size it is, in all captures of a function.
        """
        return self._values.setdefault((line, symbol), value) != value


def _place(line: str) -> str:
    """File and line of "return F.relu(x)  # nn/functional.py:12 in relu".

    Torch cuts the path short, and in the midst of a name where the file shares no folder with torch. It
    has just read the file's lines.
    """
    code, _, place = line.rpartition("  # ")
    shown, _, number = place.partition(" in ")[0].rpartition(":")
    named = [name for name in linecache.cache if shorten_filename(name) == shown]
    for name in named if number.isdecimal() else ():
        if linecache.getline(name, int(number)).strip() == code:
            return f"{name}:{number}"
    return place


def _fixed_value(guard: sympy.Basic) -> int | None:
    """4 of `s0 == 4`."""
    if isinstance(guard, sympy.Eq) and isinstance(guard.lhs, sympy.Symbol):
        return int(guard.rhs) if isinstance(guard.rhs, sympy.Integer) else None
    return None
