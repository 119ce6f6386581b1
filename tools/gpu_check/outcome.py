"""The last row of a part that turns a feature on for a GPU and build."""

from __future__ import annotations

from collections.abc import Iterable

from ortmodule_py.base.gpu_checks import note_check

from .part import Context, Row


def outcome(feature: str, rows: Iterable[str], context: Context) -> Row:
    """Whether all `rows` are right, kept for later processes; rows that have not run are not."""
    wrong = [row for row in rows if not context.known.get(row, {"ok": False})["ok"]]
    note_check(feature, not wrong)
    return {"turned_on": not wrong, "ok": not wrong, "why": ", ".join(sorted(wrong))}
