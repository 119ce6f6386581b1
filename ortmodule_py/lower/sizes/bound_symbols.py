"""The symbols that the sizes of a piece are made of: each needs a value when the piece runs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

from ortmodule_py import _C
from ortmodule_py.base.errors import CannotLower
from ortmodule_py.lower.tensor_meta import encode_int
from ortmodule_py.trace import record

_NAME = re.compile(r"[A-Za-z_]\w*")
_FUNCTIONS = {"max", "min"}


class BoundSymbols:
    """What arguments are made of, as the builder takes them, with sizes only of symbols that a run binds.

    The integer in an array of numpy, which arrives as a tensor, becomes one more argument behind the
    flat inputs.
    """

    def __init__(self, builder: _C.GraphBuilder, fakes: Sequence[Any]) -> None:
        self.Val, self.DType, self.Opaque = builder.Val, builder.DType, builder.Opaque
        self.reads: list[int] = []
        """The flat inputs that the further arguments are read of, in their order."""
        self._builder = builder
        self._bound: set[str] = set()
        # Asked for before the trace, in which torch may forget what reading an input gives.
        self._numbers = [
            (position, number)
            for position, fake in enumerate(fakes)
            if (number := record.integer_in(fake)) is not None
        ]

    def bind_sizes(self, sizes: Iterable[Any]) -> None:
        """These are sizes of a flat input, as plain values."""
        self._bound.update(str(size) for size in sizes)

    def bind_argument(self, value: Any) -> int:
        """Announce the next flat input, an integer."""
        if not isinstance(value, (int, torch.SymInt)):
            raise CannotLower(f"an input is a {type(value).__name__}")
        text = str(encode_int(value, None))
        self._bound.add(text)
        return self._builder.symint_input(text, *_range_of(value))

    def bind_numbers(self, graphs: Iterable[fx.Graph]) -> None:
        """Bind the integers that these graphs read of inputs.

        Before the first call: whoever writes a backward body must know of which sign they are.
        """
        used = {name for graph in graphs for name in _symbols_of_numbers(graph)}
        for position, number in self._numbers:
            name = str(encode_int(number, None))
            if name in used and name not in self._bound:
                self.bind_argument(number)
                self.reads.append(position)

    def Dim(self, text: str) -> Any:
        """A size; raises CannotLower where a run has no value for one of its symbols."""
        for name in _NAME.findall(text):
            if name not in _FUNCTIONS and name not in self._bound:
                raise CannotLower(
                    f"size {text} needs {name}, which is neither a size of an input nor an argument"
                )
        return self._builder.Dim(text)


def _symbols_of_numbers(graph: fx.Graph) -> Iterable[str]:
    for node in graph.nodes:
        value = node.meta.get("val", node.meta.get("example_value"))
        if isinstance(value, torch.SymInt):
            yield from map(str, value.node.expr.free_symbols)


def _range_of(value: Any) -> tuple[float, float]:
    """Least and greatest of an int argument, as far as guards and its size-likeness say."""
    if not isinstance(value, torch.SymInt):
        return float(value), float(value)
    least = next((float(n) for n in (1, 0) if statically_known_true(value >= n)), -math.inf)
    return least, -1.0 if statically_known_true(value < 0) else math.inf


def with_reads(run: Callable[..., Any], positions: Sequence[int]) -> Callable[..., Any]:
    """`run` with the integers in these of its arguments as further arguments."""

    def reading(*args: Any) -> Any:
        return run(*args, *(args[position].item() for position in positions))

    return reading
