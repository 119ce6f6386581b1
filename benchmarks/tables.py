"""Prints the rows of a benchmark run, with ratios to eager."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

Row = dict[str, Any]

_MIB = 1 << 20


def _with_ratio(row: Row, eager: Row | None, key: str, scale: float, digits: int) -> str:
    value = row.get(key)
    if value is None:
        return "-"
    text = f"{value / scale:.{digits}f}"
    base = None if eager is None else eager.get(key)
    return f"{text} ({value / base:.2f})" if base else text


def _mebibytes(value: Any) -> str:
    return f"{value / _MIB:.1f}" if isinstance(value, (int, float)) else "-"


def _planned(row: Row) -> str:
    report = row.get("report") or {}
    planned, measured = report.get("planned_peak_bytes"), report.get("measured_peak_bytes")
    if planned is None and measured is None:
        return "-"
    if planned == measured:
        return f"{_mebibytes(planned)} =="
    return f"{_mebibytes(planned)} / {_mebibytes(measured)}"


def _time_cells(row: Row, eager: Row | None) -> list[str]:
    error = row.get("gradient_error")
    return [
        _with_ratio(row, eager, "processor_ms", 1, 1),
        _with_ratio(row, eager, "wall_ms", 1, 1),
        _with_ratio(row, None, "first_wall_s", 1, 2),
        "-" if error is None else f"{error:.1e}",
    ]


def _memory_cells(row: Row, eager: Row | None) -> list[str]:
    return [
        _with_ratio(row, eager, "activation_peak_bytes", _MIB, 1),
        _with_ratio(row, eager, "fresh_peak_bytes", _MIB, 1),
        _with_ratio(row, eager, "total_peak_bytes", _MIB, 1),
        _with_ratio(row, eager, "vm_hwm_bytes", _MIB, 1),
        _planned(row),
    ]


def print_tables(rows: list[Row], console: Console, *, threads: int) -> None:
    """Print a table of times and one of bytes, and the reasons of what failed."""
    times = Table(title="Times of forward + backward (ratio to eager)")
    memory = Table(title="MiB (ratio to eager)")
    for table in (times, memory):
        table.add_column("model")
        table.add_column("variant")
    columns = (
        (
            times,
            (
                "processor ms, 1 thread",
                f"wall ms, {threads} threads" if threads > 1 else "wall ms",
                "first step s",
            ),
        ),
        (times, ("gradient error",)),
        (memory, ("activation peak", "fresh peak", "total peak", "VmHWM")),
        (memory, ("planned / measured",)),
    )
    for table, names in columns:
        for name in names:
            table.add_column(name, justify="right")
    eager = {row["model"]: row for row in rows if row["variant"] == "eager"}
    previous = None
    for row in rows:
        if previous not in (None, row["model"]):
            times.add_section()
            memory.add_section()
        previous = row["model"]
        name = escape(row["variant"]) + (" [red]failed[/red]" if row["error"] else "")
        times.add_row(row["model"], name, *_time_cells(row, eager.get(row["model"])))
        memory.add_row(row["model"], name, *_memory_cells(row, eager.get(row["model"])))
    console.print(times)
    console.print(memory)
    for row in rows:
        if row["error"]:
            where = f"{row['model']} {row['variant']}"
            console.print(f"[red]{escape(where)} failed:[/red] {escape(row['error'])}")
