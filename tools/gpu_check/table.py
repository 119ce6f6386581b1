"""The table of all rows, and what is printed as they come."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from .driver import Entry, Results
from .part import Row

_HIDDEN = {"ok", "why", "seconds", "budgets", "tries", "kernels", "lines"}
_LARGE = 1e7  # from here on a number is one of bytes


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "/".join(_shown(v) for v in value.values())
    if isinstance(value, list):
        return ",".join(map(_shown, value))
    if isinstance(value, int | float) and abs(value) > _LARGE:
        return f"{value / 2**30:.3g}GiB"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def line(part: str, name: str, row: Row) -> str:
    """One row."""
    facts = " ".join(f"{k}={_shown(v)}" for k, v in row.items() if k not in _HIDDEN)
    state = "ok  " if row["ok"] else "FAIL"
    return f"{state} {part:17} {name:26} {row['seconds']:6.1f}s  {facts}  {row['why']}".rstrip()


def table(results: Results, entries: Sequence[Entry]) -> int:
    """Prints all rows, then what they say in several lines; returns how many are wrong or missing."""
    wrong = 0
    below: list[str] = []
    print(f"\n{json.dumps(results.machine)}")
    for entry in entries:
        rows = results.parts.get(entry.name, {})
        for name in entry.rows:
            if name not in rows:
                continue
            row = rows[name]
            print(line(entry.name, name, row))
            wrong += not row["ok"]
            if row.get("lines"):
                below += [f"\n{entry.name}, {name}", *row["lines"]]
        missing = [name for name in entry.rows if name not in rows]
        if missing:
            print(f"todo {entry.name:17} {len(missing)} rows left: run this again")
            wrong += len(missing)
    print("\n".join(below))
    print(f"\nall is in {results.path}")
    print("all is well" if not wrong else f"{wrong} rows are wrong or missing")
    return wrong
