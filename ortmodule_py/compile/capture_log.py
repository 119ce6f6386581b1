"""The log of one module's captures: graph breaks, fallbacks to eager PyTorch, specialized numbers.

Each event is logged once; `last_run_report` shows all of them.
"""

from __future__ import annotations

import logging
import types
from collections import defaultdict
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from ortmodule_py import _C
from ortmodule_py.base.errors import CannotLower, Origin, first_line, place
from ortmodule_py.compile.forward_record import ForwardRecord
from ortmodule_py.dynamo.graph_breaks import OPEN_LOOP, UNIT
from ortmodule_py.dynamo.transforms import Transforms
from ortmodule_py.options.engine import EngineOptions
from ortmodule_py.options.memory import LEVEL

_LAYERS_NAMED = 4
_NUMBERS, _SIZES = 2, 3
"""So many captured values of a number, of which the first is not known to change, or of a size are said."""

Values = tuple[float | int, ...]


@dataclass
class EagerPiece:
    """A piece that runs in eager PyTorch, and why."""

    reason: str
    origin: str
    modes: set[str] = field(default_factory=set, compare=False)
    """The modes of the forwards that ran it, of `forward_record.MODES`."""

    def __str__(self) -> str:
        return f"{self.reason} ({self.origin})" if self.origin else self.reason


@dataclass
class CaptureLog:
    """The events of a module's captures, and the warnings about them."""

    options: EngineOptions
    logger: logging.Logger
    graph_breaks: list[str] = field(default_factory=list)
    """One per capture that ended at a graph break: a break repeats for each recompilation."""
    empty_break: str | None = None
    """The graph break that ended the current capture, if there was nothing to capture in front of it."""
    eager_pieces: list[EagerPiece] = field(default_factory=list)
    specialized: dict[tuple[str, str, str], set[Values]] = field(default_factory=dict)
    """The values that were captured of a number or size, by call, line and symbol."""
    fixed_floats: set[tuple[str, str]] = field(default_factory=set)
    """Calls that specialize floats, by function and line."""
    number_reads: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Line that reads a number from an argument -> its captures."""
    list_kinds: defaultdict[tuple[Any, ...], dict[Any, Any]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    """The captured kinds of a list of tensors by capture, by function and source."""
    read_lists: set[str] = field(default_factory=set)
    """Lines that append to a list that the same function reads."""
    traced_whole: set[types.CodeType] = field(default_factory=set)
    """Functions in which layers that call older objects are not copied, as a copy of one has failed half-way."""
    float_values: defaultdict[tuple[str, str], set[Values]] = field(
        default_factory=lambda: defaultdict(set)
    )
    """The values of floats that change, by call. The first is not known to change."""
    captured_lines: set[str] | None = field(default_factory=set)
    """Source lines with captured calls of this module; None: unknown."""
    transforms: Transforms = field(default_factory=Transforms)
    loop_break: tuple[types.CodeType, int] | None = None
    """The function that Dynamo gives up, as the graph breaks in one of its loops, and the offset there."""
    open_loop: tuple[types.CodeType, int] | None = None
    """The function with a loop over a size that has had too many values, and the offset of its `GET_ITER`."""
    python_parts: set[types.CodeType] = field(default_factory=set)
    """Loops and calls that are functions of their own and run in Python."""
    checkpoints_reported: bool = False
    said: set[Any] = field(default_factory=set)
    """Messages that are logged once."""
    uncovered: list[str] = field(default_factory=list)
    """Parameters that the outputs depend on, but that are no input of any piece."""
    current_record: Callable[[], ForwardRecord | None] = lambda: None
    """The record of this thread's current forward, or of the last one."""
    _uncovered_piece: EagerPiece | None = None

    def report_graph_break(self, reason: str) -> None:
        """A capture ended at a graph break."""
        if reason not in self.graph_breaks:
            level = logging.INFO if reason.startswith(UNIT) else logging.WARNING
            self.logger.log(level, "ortmodule_py: the graph breaks here: %s", reason)
        self.graph_breaks.append(reason)

    def report_empty_break(self) -> None:
        """The capture has ended, perhaps at a graph break without a piece in front of it.

        Such a break in a line that has one already is what runs that line in Python.
        """
        reason, self.empty_break = self.empty_break, None
        if reason is None:
            return
        line = reason[max(reason.rfind(" ("), 0) :]
        if not any(known.endswith(line) for known in self.graph_breaks):
            self.report_graph_break(reason)

    def has_captured(self, origin: Origin) -> bool:
        """Whether a call in this line was captured before; True if unknown."""
        return self.captured_lines is None or origin[1] in self.captured_lines

    def report_specialized_float(self, name: str, origin: Origin, values: Values) -> None:
        """A call of `name` specializes floats: after three captured values the graph breaks there."""
        self.fixed_floats.add((name, origin[1]))
        limit = "" if self.options.fullgraph else "; at the next one the graph breaks there"
        self.report_specialized(name, origin, values, limit=limit)

    def report_specialized(
        self, name: str, origin: Origin, values: Values, symbol: str = "", limit: str = ""
    ) -> None:
        """A call of `name` specializes numbers, or the size with this symbol, to these values.

        Said once there are more values than may be a coincidence: another module of the class may have had
        another number, and sizes may settle.
        """
        where = place(origin)
        known = self.specialized.setdefault((name, where, symbol), set())
        known.add(values)
        text = f"a number or size that changes from call to call is specialized in {name}"
        if len(known) < (_SIZES if symbol else _NUMBERS) or (text, where) in self.said:
            return
        self.said.add((text, where))
        self.logger.warning(
            "ortmodule_py: %s: each value of it so far is a capture of its own%s%s",
            text,
            limit,
            f" ({where})" if where else "",
        )

    def most_captures(self, lines: Set[str]) -> int:
        """How many values have been captured of a size that one of these lines specializes."""
        found = self.specialized.items()
        return max((len(v) for (_, at, symbol), v in found if symbol and at in lines), default=0)

    def report_checkpoints(self, count: int) -> None:
        """The memory optimizer decides what is recomputed, not `torch.utils.checkpoint`.

        Checkpoints ask for recomputation, so they set level 1 if no memory option is given.
        """
        memory = self.options.memory
        what = "the memory options decide what is recomputed"
        if not memory.asked and not memory.level_is_given:
            memory.level = 1
            what = f"the memory optimizer recomputes by layer instead, as with {LEVEL}=1"
        if self.checkpoints_reported:
            return
        self.checkpoints_reported = True
        found = "1 region" if count == 1 else f"{count} regions"
        what = f"{'is' if count == 1 else 'are'} part of the graph; {what}"
        self.logger.warning("ortmodule_py: %s of torch.utils.checkpoint %s", found, what)

    def report_uncaptured(self, ran_before: bool, line: str) -> None:
        """A forward ran no piece; `line` is that of the module's forward."""
        if self.options.fullgraph:
            raise _C.ORTModuleError(
                "[ORTMODULE_FULLGRAPH] the whole module must be one graph, but found that Dynamo "
                "captured nothing of it; unset it to run the module in eager PyTorch"
            )
        reason = "Dynamo captured nothing of it"
        if ran_before:
            reason = "it ran compiled before, but Dynamo skips its forward now"
        if any(why.startswith(OPEN_LOOP) for why in self.graph_breaks):
            reason = f"all that it computes is in {OPEN_LOOP}"
        self.report_eager(CannotLower(f"the whole module: {reason}", ("", line)))

    def report_without_effect(self, what: str) -> None:
        """`what` runs in eager PyTorch as documented; said once, and only if memory options are set."""
        text = f"{what} in eager PyTorch{self.options.memory.without_effect}"
        if self.options.memory.setting and text not in self.said:
            self.said.add(text)
            self.logger.warning("ortmodule_py: %s", text)

    def report_uncovered(self, names: Sequence[str], trained_count: int) -> None:
        """The outputs depend on parameters that are no input of any piece: their layers run in eager."""
        uncovered = [*self.uncovered, *(name for name in names if name not in self.uncovered)]
        if len(uncovered) == len(self.uncovered):
            return
        layers = list(dict.fromkeys(name.rpartition(".")[0] or name for name in uncovered))
        shown, more = layers[:_LAYERS_NAMED], len(layers) - _LAYERS_NAMED
        reason = (
            f"{len(uncovered)} of {trained_count} parameters are in no compiled piece, but in layers that Dynamo "
            f"skips: {', '.join(shown)}{f' and {more} more' if more > 0 else ''}"
        )
        self.report_eager(CannotLower(reason))
        self.eager_pieces[:] = [p for p in self.eager_pieces if p is not self._uncovered_piece]
        self._uncovered_piece, self.uncovered = self.eager_pieces[-1], uncovered

    def report_eager(self, error: Exception) -> EagerPiece:
        """A piece falls back to eager PyTorch; logged once.

        Raises:
            ORTModuleError: ORTMODULE_FALLBACK_POLICY forbids eager PyTorch.
        """
        record = self.current_record()
        if record is not None:
            record.eager, record.whole = True, False
        reason = first_line(str(getattr(error, "reason", error)))  # torch adds its internals below
        piece = EagerPiece(reason, place(getattr(error, "origin", ("", ""))))
        if not self.options.eager_allowed:
            raise _C.ORTModuleError(
                "[ORTMODULE_FALLBACK_POLICY] with FALLBACK_DISABLE every piece must be compiled, "
                f"but found one that cannot be: {piece}"
            )
        if piece in self.eager_pieces:
            piece = self.eager_pieces[self.eager_pieces.index(piece)]
        else:
            self.eager_pieces.append(piece)
            if record is not None:
                record.captures += 1
            self.logger.warning(
                "ortmodule_py: a piece of the model runs in eager PyTorch%s: %s",
                self.options.memory.without_effect,
                piece,
            )
        if record is not None:
            piece.modes.add(record.mode)
        return piece
