"""Source lines that specialize a size, so that each value of it is a capture.

Dynamo makes sizes symbolic; an operator without symbolic sizes in torch, or a comparison with a number,
adds a guard on the exact value.
"""

from __future__ import annotations

import linecache
from typing import Any

import sympy
import torch
from torch.utils._traceback import shorten_filename


class FixedSizes:
    """The source lines of one module that specialized a size, with the value."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, str], int] = {}

    def respecialized_lines(self) -> list[str]:
        """Lines that specialize a size in the current capture and did so to another value before."""
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
        """Whether the line specialized this size to another value before.

        A size has the same symbol in all captures of a function.
        """
        return self._values.setdefault((line, symbol), value) != value


def _place(line: str) -> str:
    """File and line of "return F.relu(x)  # nn/functional.py:12 in relu".

    Torch shortens the path, also within a folder name; `linecache` still has the full one.
    """
    code, _, place = line.rpartition("  # ")
    shown, _, number = place.partition(" in ")[0].rpartition(":")
    named = [name for name in linecache.cache if shorten_filename(name) == shown]
    for name in named if number.isdecimal() else ():
        if linecache.getline(name, int(number)).strip() == code:
            return f"{name}:{number}"
    return place


def _fixed_value(guard: sympy.Basic) -> int | None:
    """4 for the guard `s0 == 4`; None for guards of another form."""
    if isinstance(guard, sympy.Eq) and isinstance(guard.lhs, sympy.Symbol):
        return int(guard.rhs) if isinstance(guard.rhs, sympy.Integer) else None
    return None
