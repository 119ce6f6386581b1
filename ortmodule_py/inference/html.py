"""Reports as HTML for notebooks. Colours are those of the notebook's theme."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

_CELL = "padding:2px 12px 2px 0;text-align:{};vertical-align:top"


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table; numbers stand on the right and have separators."""
    head = "".join(f'<th style="{_CELL.format("left")}">{escape(name)}</th>' for name in header)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    head = f"<thead><tr>{head}</tr></thead>" if any(header) else ""
    return f'<table style="border-collapse:collapse">{head}<tbody>{body}</tbody></table>'


def _cell(value: Any) -> str:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    text = f"{value:,}" if isinstance(value, int) and number else str(value)
    return f'<td style="{_CELL.format("right" if number else "left")}">{escape(text)}</td>'


def paragraph(text: str, strong: bool = False) -> str:
    """A paragraph of plain text."""
    return f"<p><b>{escape(text)}</b></p>" if strong else f"<p>{escape(text)}</p>"


def folded(title: str, content: str) -> str:
    """Content that a click shows."""
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


def folded_table(title: str, names: Sequence[str], items: Iterable[dict[str, Any]]) -> str:
    """A table of some values of each item, which a click shows."""
    return folded(title, table(names, ([item[name] for name in names] for item in items)))


def block(*parts: str) -> str:
    """The parts as one output of a cell."""
    return f"<div>{''.join(parts)}</div>"
