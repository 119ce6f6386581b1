"""Captures what a program appends to a list that it does not read, such as the history of a loss.

Dynamo guards on the length and the items of a list that it appends to, so that each call would be a capture, and
breaks the graph at a `collections.deque` with a `maxlen`. Here the list is not looked at: what Dynamo makes of the
function calls its `append` behind the graph.

The last row that replaces the read of attributes, so the first that is asked: others look at the list.
"""

from __future__ import annotations

import collections
import types
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch._dynamo.exc import RestartAnalysis
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.source import AttrSource
from torch._dynamo.variables import ConstantVariable, SymNodeVariable
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.lazy import LazyVariableTracker

from ortmodule_py.dynamo.graph_breaks import user_line
from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import (
    HOLDS,
    LOAD_ATTRIBUTE,
    capturing_compiler,
    patch,
    rows,
)

_APPENDED = "_ortmodule_appended"
_LISTS = (list, collections.deque)
_READS = "lists that are read"


def _probe(trial: Trial) -> bool:
    def make() -> Callable[[Tensor], Tensor]:
        seen: collections.deque[Tensor] = collections.deque(maxlen=2)
        history: list[Tensor] = []

        def kept(x: Tensor) -> Tensor:
            seen.append(x.sum())
            history.append(x.detach())
            return x * 2

        return kept

    def make_reader() -> Callable[[Tensor], Tensor]:
        seen: list[Tensor] = []

        def kept(x: Tensor) -> Tensor:
            seen.append(x * 2)
            return x * len(seen)

        return kept

    once = trial(make, *((torch.ones(3),) for _ in range(4))) and trial.captures == 1
    return once and trial(make_reader, *((torch.ones(3),) for _ in range(3)))


@patch(
    "appended values",
    "A list that the program only appends to may have any length.",
    LOAD_ATTRIBUTE,
    probe=_probe,
    needed_by=None,
)
def _load(load: Callable[..., Any], self: Any, attr: Any) -> None:
    holder = self.stack[-1]
    if attr == "append" and _is_unread(self, holder):
        self.stack[-1] = _Append(holder, source=AttrSource(holder.source, attr))
    else:
        load(self, attr)


def _is_unread(tx: Any, holder: VariableTracker) -> bool:
    """Whether this is a list from outside that the capture has not looked at."""
    if not isinstance(holder, LazyVariableTracker) or holder.is_realized():
        return False
    found = holder.peek_value()
    if type(found) not in _LISTS or holder.source is None:
        return False
    if tx.output.current_tracer is not tx.output.root_tracer:
        return False  # values of a part, as of a checkpoint, do not exist outside of it
    watched = rows[_READS].state == HOLDS
    return watched and found not in tx.output.side_effects and user_line() not in _read_lines()


class _Append(VariableTracker):
    """The method `append` of a list that has not been looked at."""

    _nonvar_fields: ClassVar[set[str]] = {"holder", *VariableTracker._nonvar_fields}
    """Dynamo looks at all others at a graph break."""

    def __init__(self, holder: LazyVariableTracker, **options: Any) -> None:
        super().__init__(**options)
        self.holder = holder

    def call_function(self, tx: Any, args: Any, kwargs: Any) -> VariableTracker:
        holder = self.holder
        plain = len(args) == 1 and not kwargs and _is_plain(args[0])
        if not plain or not _is_unread(tx, holder):
            return holder.realize().call_method(tx, "append", args, kwargs)
        source = holder.source
        install_guard(source.make_guard(GuardBuilder.TYPE_MATCH))
        known = vars(tx.output).setdefault(_APPENDED, {})
        known.setdefault(id(holder.peek_value()), set()).add(user_line())
        tx.output.root_tx.debug_locals.append((self, list(args)))
        return ConstantVariable.create(None)

    def reconstruct(self, codegen: Any) -> None:
        codegen(self.source)


def _is_plain(value: VariableTracker) -> bool:
    """Whether a value has no parts that may change until the end of the function."""
    value = value.realize()
    return value.is_tensor() or isinstance(value, (ConstantVariable, SymNodeVariable))


def _read_lines() -> set[Any]:
    """Lines that append to lists that are read, too."""
    compiler: Any = capturing_compiler()
    lines: set[Any] = compiler.log.read_lists
    return lines


@patch(
    _READS,
    "A list that the program appends to and reads has what was appended.",
    # Not `wrap_listlike`: from its first capture on Dynamo has it in a dispatch table.
    "torch._dynamo.variables.builder:VariableBuilder._wrap",
    probe=_probe,
    needed_by=None,
)
def _wrapped(wrap: Callable[..., Any], self: Any, value: Any) -> Any:
    lines = vars(self.tx.output).get(_APPENDED, {}).get(id(value))
    if lines:
        _read_lines().update(lines)
        raise RestartAnalysis(restart_reason="a list is read behind a line that appends to it")
    method = isinstance(value, types.BuiltinMethodType) and type(value.__self__) in _LISTS
    if not method or value.__name__ != "append":
        return wrap(self, value)
    # As behind a graph break between the method and its argument.
    install_guard(AttrSource(self.source, "__name__").make_guard(GuardBuilder.EQUALS_MATCH))
    holder = LazyVariableTracker.create(value.__self__, AttrSource(self.source, "__self__"))
    return _Append(holder, source=self.source)
