"""The plan table: what the memory optimizer could recompute, what it does, and notes.

A row stands for all recompute subgraphs of one kind (a cluster id and a strategy).
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import sympy

from ortmodule_py.options.memory import BUDGET, CONFIG, LEVEL, LEVEL_NAMES, MemoryRequest

_COLUMNS = ("Configs", "Freq", "Max Saving(Bytes)", "Saving Symbolic(Bytes)", "Peak", "Step time")
ROWS_BY_DEFAULT = 5
"""Rows shown at the default log level if the memory optimizer is off."""
PIECES_BY_DEFAULT = 3
"""Pieces shown then, those that save the most bytes for backward."""


def training_piece(compiler: Any) -> Any | None:
    """The compiled piece that saves the most bytes for backward; None before the first forward."""
    known = [(piece.compiled, piece.compiled.memory()) for piece in compiler.pieces]
    trained = [(facts["before"]["saved_bytes"], n) for n, (_, facts) in enumerate(known) if facts]
    return known[max(trained)[1]][0] if trained else None


def step_runs(compiler: Any) -> list[Any]:
    """The compiled pieces of the last training forward, one entry per run."""
    trained = compiler.trained.runs if compiler.trained else ()
    runs = [piece for piece in trained if piece.memory()]
    one = None if runs else training_piece(compiler)
    return runs if one is None else [one]


def step_pieces(compiler: Any) -> list[Any]:
    """The compiled pieces of the last training forward, each once."""
    return list(dict.fromkeys(step_runs(compiler)))


# ---- symbols ---------------------------------------------------------------------------------


def symbol_names(facts: dict[str, Any]) -> dict[str, str]:
    """Readable names for the size symbols of a captured piece, from its memory facts.

    `batch` is the size of dim 0 that most arguments share, `seq_len` the size of dim 1 of the first
    integer argument. Symbols that had the same value there in the first batch share the name. Any other
    symbol is named `{argument}_dim{i}` after the first argument that has it: `inputs_x_dim1` for
    `inputs['x']`.
    """
    sizes: dict[str, int] = facts["sizes"]
    places: dict[str, tuple[str, int, bool]] = {}
    leading: Counter[int] = Counter()
    for value in facts["inputs"]:
        for dim, text in enumerate(value["dims"]):
            if text not in sizes:
                continue
            places.setdefault(text, (value["name"], dim, value["integer"]))
            if dim == 0:
                leading[sizes[text]] += 1
    batch = leading.most_common(1)[0][0] if leading else None
    lengths = [sizes[s] for s, (_, dim, integer) in places.items() if dim == 1 and integer]
    names = {}
    for symbol, (argument, dim, integer) in places.items():
        if dim == 0 and sizes[symbol] == batch:
            names[symbol] = "batch"
        elif dim == 1 and integer and sizes[symbol] == lengths[0]:
            names[symbol] = "seq_len"
        else:
            names[symbol] = re.sub(r"\W+", "_", argument).strip("_") + f"_dim{dim}"
    return names


def renamed(text: str, names: dict[str, str]) -> str:
    """A size expression with readable symbols."""
    return re.sub(r"[A-Za-z_]\w*", lambda match: names.get(match[0], match[0]), text)


def symbolic_text(text: str, names: dict[str, str]) -> str:
    """A size expression with readable symbols, factored, and with a leading float."""
    shown = renamed(text, names)
    if "//" in shown or "%" in shown or "(" in shown:
        return f"1.0*({shown})"
    symbols = {name: sympy.Symbol(name) for name in re.findall(r"[A-Za-z_]\w*", shown)}
    expression = sympy.factor(sympy.sympify(shown, locals=symbols))
    factor, rest = expression.as_coeff_Mul()
    if rest == 1:
        return f"{float(factor)}"
    return f"{float(factor)}*" + (f"({rest})" if rest.is_Add else str(rest))


# ---- the table -------------------------------------------------------------------------------


def _change(after: float, before: float) -> str:
    return f"{(after / before - 1) * 100:+.1f}%" if before else "n/a"


def plan_rows(
    piece: Any, request: MemoryRequest, limit: int | None = None, *, last: bool = False
) -> list[dict[str, Any]]:
    """The rows of the plan table as plain values, the largest saving first.

    Peak and step time of a row are predicted for applying it alone, with the sizes of the first batch, or
    with `last` of the last forward.
    """
    facts = piece.memory(last)
    names = symbol_names(facts)
    rows = []
    for number, row in enumerate(facts["rows"][:limit], start=1):
        id, strategy = row["cluster_id"], row["strategy"]
        alone = piece.row_figures(number - 1, last)
        rows.append(
            {
                "number": number,
                "config": f"{id}:{strategy}:{request.count_of(id, strategy)}",
                "on": row["applied"] > 0,
                "applied": row["applied"],
                "frequency": row["frequency"],
                "saving_bytes": row["saving_bytes"],
                "saving_symbolic": symbolic_text(row["saving"], names),
                "peak_change_bytes": alone["peak_bytes"] - facts["before"]["peak_bytes"],
                "peak_change": _change(alone["peak_bytes"], facts["before"]["peak_bytes"]),
                "time_change": _change(alone["time_us"], facts["before"]["time_us"]),
                "reason": row["reason"],
                "modules": row["modules"],
            }
        )
    return rows


def step_rows(
    pieces: Sequence[Any], request: MemoryRequest, *, last: bool = False
) -> list[dict[str, Any]]:
    """`plan_rows` of all pieces of a step, numbered consecutively."""
    rows = [
        {**row, "piece": n}
        for n, piece in enumerate(pieces, start=1)
        for row in plan_rows(piece, request, last=last)
    ]
    return [{**row, "number": number} for number, row in enumerate(rows, start=1)]


def step_table(
    pieces: Sequence[Any], request: MemoryRequest, limit: int | None = None
) -> list[str]:
    """`table_lines` of every piece of a step. Peak and time of a row are those of its piece.

    With `limit`, only the pieces that save the most are shown.
    """
    facts = [piece.memory() for piece in pieces]
    notes = _unmatched(facts, request)
    order = sorted(range(len(facts)), key=lambda k: -facts[k]["before"]["saved_bytes"])
    shown = order if limit is None else order[:PIECES_BY_DEFAULT]
    lines: list[str] = []
    first = 1
    for k, (piece, one) in enumerate(zip(pieces, facts, strict=True)):
        if k in shown:
            if len(pieces) > 1:
                lines.append(
                    f"Piece {k + 1} of {len(pieces)}, which graph breaks part; peak and step time are "
                    "the piece's"
                )
            lines += table_lines(piece, request, limit, first, notes)
            notes = []
        first += len(one["rows"])
    if len(shown) < len(pieces):
        lines.append(f"({len(pieces) - len(shown)} more pieces at log level INFO)")
    return lines


def _unmatched(facts: Sequence[dict[str, Any]], request: MemoryRequest) -> list[str]:
    """A note for each element of the configuration that matches no row of any piece."""
    rows = [row for one in facts for row in one["rows"]]
    known = {f"{row['cluster_id']}:{row['strategy']}" for row in rows}
    forbidden = {f"{row['cluster_id']}:0" for row in rows}
    notes = []
    for element in request.config:
        wanted = f"{element.cluster_id}:{element.strategy}"
        if wanted not in known | forbidden:
            nearest = difflib.get_close_matches(wanted, sorted(known), n=3, cutoff=0.0)
            hint = f"the nearest are {', '.join(nearest)}" if nearest else "it has none"
            notes.append(f"[{CONFIG}] '{wanted}' matches no plan of this model; {hint}")
    return notes


def table_lines(
    piece: Any,
    request: MemoryRequest,
    limit: int | None = None,
    first: int = 1,
    notes: Sequence[str] = (),
) -> list[str]:
    """The memory optimizer's part of the start-up text: its state, the rows, numbered from `first`,
    and notes, the given ones among them.
    """
    facts = piece.memory()
    rows = plan_rows(piece, request, limit)
    cells = [
        (
            row["config"],
            f"{row['frequency']}",
            f"{row['saving_bytes']:,}",
            row["saving_symbolic"],
            row["peak_change"],
            row["time_change"],
        )
        for row in rows
    ]
    widths = [max(len(line[i]) for line in [_COLUMNS, *cells]) + 2 for i in range(len(_COLUMNS))]
    lines = [f"Memory Optimizer     :  {_state(facts, request)}"]
    if rows:
        header = "".join(text.ljust(width) for text, width in zip(_COLUMNS, widths, strict=True))
        lines.append(" " * 32 + header.rstrip())
    for number, (row, line) in enumerate(zip(rows, cells, strict=True), start=first):
        text = "".join(part.ljust(width) for part, width in zip(line, widths, strict=True))
        state = "ON " if row["on"] else "OFF"
        reason = row["reason"].partition(":")[0]
        why = f"  [{reason}]" if request.asked and not row["on"] and reason else ""
        lines.append(f" - Plan {number:<12} :  {state}  :  {text.rstrip()}{why}")
    if limit is not None and len(facts["rows"]) > limit:
        lines.append(f"   ({len(facts['rows']) - limit} more rows at log level INFO)")
    return lines + _notes(facts, request, notes)


def _state(facts: dict[str, Any], request: MemoryRequest) -> str:
    if not request.asked:
        return f"OFF  :  Enable with env {LEVEL}=1/2, {CONFIG}=<config.json> or {BUDGET}=<bytes>"
    parts = []
    if request.budget is not None:
        parts.append(f"Memory Budget: [{request.budget.text}]")
    else:
        parts.append(f"Memory Optimization Level: [{LEVEL_NAMES[request.level]}]")
    if request.config_source:
        parts.append(f"Optimization Config: [{request.config_source}]")
    before, after = facts["before"], facts["after"]
    layers = " + ".join(str(group["count"]) for group in facts["layers"]) or "none found"
    parts.append(_bytes_change("peak", before["peak_bytes"], after["peak_bytes"]))
    if before["peak_bytes"] == after["peak_bytes"] and (
        facts["recomputed_values"] or facts["offloaded_values"]
    ):
        # New gradients hide the saving at the peak; a step that accumulates gradients shows it.
        was, now = before["accumulating_peak_bytes"], after["accumulating_peak_bytes"]
        parts.append(_bytes_change("adding to gradients", was, now))
    parts.append(
        f"step time {_change(after['time_us'], before['time_us'])} (estimate), layers: {layers}"
    )
    state = "ON " if facts["recomputed_values"] or facts["offloaded_values"] else "OFF"
    return f"{state}  :  " + ", ".join(parts)


def _bytes_change(name: str, before: int, after: int) -> str:
    return f"{name} {before:,} -> {after:,} bytes ({_change(after, before)})"


def _notes(facts: dict[str, Any], request: MemoryRequest, given: Sequence[str]) -> list[str]:
    names = symbol_names(facts)
    notes = []
    if not request.asked:
        notes.append(f"Use {LEVEL}=1 or 2 to recompute by layer, or select plans with {CONFIG}.")
    named = {names.get(symbol, symbol): value for symbol, value in facts["sizes"].items()}
    values = ", ".join(f"{name}={value}" for name, value in sorted(named.items()))
    if values:
        notes.append(f"Memory saving is calculated based on the 1st batch: {values}")
    for scores in facts["returned_scores"]:
        where = ", ".join(filter(None, (scores["module"], scores["source"])))
        notes.append(
            f"The scores of the loss ({where}) are returned: {scores['bytes']:,} bytes, and as many "
            'for their gradient. Training that reads the loss alone needs neither: outputs=["loss"].'
        )
    notes += [*given, *facts["warnings"]]
    return [f"Note {n}: [Memory Optimizer] {note}" for n, note in enumerate(notes, start=1)]
