"""Source lines that specialize a size, so that each value of it is a capture.

Dynamo makes sizes symbolic; an operator without symbolic sizes in torch, or a comparison with a number,
adds a guard on the exact value.
"""

from __future__ import annotations

import functools
import linecache
from typing import Any

import sympy
import torch
from torch.utils._traceback import shorten_filename


def fixed_sizes() -> list[tuple[str, str, int]]:
    """(line, symbol, value) of the sizes that the current capture specializes.

    A size has the same symbol in all captures of a function.
    """
    context = torch._guards.TracingContext.try_get()
    shape_env: Any = getattr(getattr(context, "fake_mode", None), "shape_env", None)
    found = []
    for guard in getattr(shape_env, "guards", ()):
        line = getattr(getattr(guard, "sloc", None), "maybe_user_loc", None)
        value = _fixed_value(guard.expr)
        if line is not None and value is not None:
            found.append((line, guard.expr.lhs.name, value))
    return found


@functools.cache
def place_of(line: str) -> str:
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
