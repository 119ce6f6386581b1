"""Moves a loop or a call that breaks the graph into a function of its own.

Dynamo gives up a whole function if the graph breaks in one of its loops. Here the function ends in front of
the loop with a call of a second one, which runs the loop and ends with a call of a third one, the rest. What
stands before and behind the loop is captured, the loop runs in Python, and the layers that it calls are
captured one by one. Works on bytecode, as a function may have no source.

A loop whose number of rounds is a size is unrolled: each size is a capture. If it changes too often (see
`patches/open_loops`), the loop runs in Python as well, with all that reads a list that it fills, since Dynamo
guards the lengths of lists.

At a graph break, Python gets what the function has at hand. Dynamo gives up the function if it cannot make that:
the iterators of `[t.item() for i, t in enumerate(ts)]` and `sum(t.item() for t in ts)`, for example. So the call
that breaks the graph becomes a function that makes its arguments itself.
"""

from __future__ import annotations

import dis
import functools
import sys
import types
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from typing import Any

import torch._dynamo.bytecode_analysis as analysis
import torch._dynamo.bytecode_transformation as bytecode

_VERSIONS = ((3, 11), (3, 12), (3, 13))
"""Versions of Python whose bytecode is known here; elsewhere Dynamo skips the function."""
_STEPS_BACK = 64
"""Instructions before the loop that may compute what it iterates over."""

_MADE = ("LIST_APPEND", "LIST_EXTEND", "LIST_TO_TUPLE", "CALL_INTRINSIC_1")
"""Instructions that end `(*values, value)` and `[*values, value]`."""

_IN_PROLOGUE = "__is_tracing_resume_prologue"
"""Variable of the instructions with which a function goes on behind a graph break."""
_new: Callable[..., Any] = bytecode.create_instruction


@dataclass(frozen=True)
class Outlined:
    """A function whose loop, or a call in it, is a function of its own."""

    code: types.CodeType
    """The function, which calls the part. It has the variables of the original: guards read a frame's
    variables by position."""
    part: types.CodeType
    """What runs in Python: the loop or the call."""
    rounds: types.CodeType | None = None
    """The loop alone, if the part calls it and then reads the lists that it fills."""


@dataclass(frozen=True)
class _Cut:
    """An instruction at which a function ends with a call of another one, which goes on from there."""

    at: int
    arguments: tuple[str, ...]
    """Local variables that have a value and are read from there on."""
    cells: tuple[str, ...]
    """Variables that are shared with nested functions or the enclosing one."""


@dataclass(frozen=True)
class _Region:
    """Instructions that leave one value."""

    inner: range
    stop: int
    """Where the function goes on."""
    kept: tuple[int, ...] = ()
    """Instructions behind the inner ones that stay."""
    saved: tuple[str, ...] = ()
    """Variables whose values the inner instructions leave below the result, the last one on top."""


class _NoCut(Exception):
    """The loop cannot be a function of its own."""


@functools.lru_cache(maxsize=256)
def outline(code: types.CodeType, offset: int) -> Outlined | None:
    """Outline the outermost loop around the instruction at `offset`, or None if that is not possible."""
    if sys.version_info[:2] not in _VERSIONS:
        return None
    try:
        flow = _Flow(code)
        start, end = _cuts(flow, _loop_around(flow, flow.position(offset)))
        rest = _function(code, end, None, None) if end else None
        loop = _function(code, start, end, rest)
        return _outlined(code, _function(code, None, start, loop), loop)
    except _NoCut:
        return None  # the report names the graph break, as without outlining


@functools.lru_cache(maxsize=256)
def outline_rounds(code: types.CodeType, offset: int) -> Outlined | None:
    """Outline the loop or comprehension over what `GET_ITER` at `offset` iterates, and what reads the lists
    that it fills; None if that is not possible."""
    if sys.version_info[:2] not in _VERSIONS:
        return None
    try:
        start, end, last = _cuts_around_rounds(_Flow(code), offset)
        if end is None:
            rounds = part = _function(code, start, None, None)
        else:
            rounds = _rounds(code, start, end)
            rest = _function(code, last, None, None) if last else None
            part = _calling_rounds(code, start, end, rounds, last, rest)
        return _outlined(code, _function(code, None, start, part), part, rounds)
    except _NoCut:
        return None


@functools.lru_cache(maxsize=256)
def outline_call(code: types.CodeType, offset: int) -> Outlined | None:
    """Outline the call at `offset` with all that computes its arguments, or None if that is not possible.

    From Python 3.12 on, a comprehension is no call: then it is the outermost one around `offset`.
    """
    if sys.version_info[:2] not in _VERSIONS:
        return None
    try:
        flow = _Flow(code)
        region = _comprehension_around(flow, offset) or _call_around(flow, offset)
        cut = flow.cut_of(region.inner)
        part = _part(code, cut, region)
        caller = _with_call(code, cut, region, part)
    except _NoCut:
        return None
    return _outlined(code, caller, part)


def _outlined(
    code: types.CodeType,
    caller: types.CodeType,
    part: types.CodeType,
    rounds: types.CodeType | None = None,
) -> Outlined | None:
    variables = ("co_varnames", "co_cellvars", "co_freevars")
    same = all(getattr(caller, kind) == getattr(code, kind) for kind in variables)
    return Outlined(caller, part, rounds) if same else None


# ---- finding the loop ------------------------------------------------------------------------------


def _loop_around(flow: _Flow, at: int) -> range:
    """The instructions of the outermost loop around an instruction.

    Raises:
        _NoCut: there is no loop.
    """
    head = min((goal for i, goal in flow.jumps.items() if goal <= at <= i), default=None)
    if head is None:
        raise _NoCut
    # Without exceptions, as their handlers stand at the end of a function.
    last = max((i for i in flow.reachable(head) if flow.jumps.get(i) == head), default=head)
    return range(head, last + 1)


def _cuts(flow: _Flow, inner: range) -> tuple[_Cut, _Cut | None]:
    """In front of some instructions, and behind them unless the function ends with them.

    Raises:
        _NoCut: there is no such place.
    """
    head = inner.start
    first = next(i for i, inst in enumerate(flow.all) if inst.opname == "RESUME") + 1
    starts = (i for i in range(head, max(first, head - _STEPS_BACK) - 1, -1) if flow.depth(i) == 0)
    start = next((i for i in starts if flow.reachable(0, i).isdisjoint(inner)), None)
    if start is None:
        raise _NoCut
    return flow.cut(start), _cut_behind(flow, start, inner[-1])


def _cut_behind(flow: _Flow, start: int, last: int) -> _Cut | None:
    """Behind the instruction at `last` on the way from `start`; None if no place before the function's end is.

    Raises:
        _NoCut: the place is in a `with` or a `try`, or a variable may have a value or not.
    """
    behind = [i for i in sorted(flow.reachable(start)) if i > last]
    ends = (i for i in behind if flow.depth(i) == 0 and max(flow.reachable(start, i)) < i)
    end = next(ends, None)
    return None if end is None else flow.cut(end)


def _cuts_around_rounds(flow: _Flow, offset: int) -> tuple[_Cut, _Cut | None, _Cut | None]:
    """In front of the loop or comprehension of the iterator that the instruction at `offset` makes, behind it, and
    behind what reads the lists that it fills; None is the function's end.

    Raises:
        _NoCut: there is no such place.
    """
    at = flow.position(offset)
    heads = (i for i in range(at, len(flow.all)) if flow.all[i].opname in ("FOR_ITER", "CALL"))
    head = next(heads, -1)  # a comprehension before Python 3.12 is a call
    if head < 0:
        raise _NoCut
    is_loop = flow.all[head].opname == "FOR_ITER"
    inner = _loop_around(flow, head) if is_loop else range(at, head + 1)
    start, end = _cuts(flow, inner)
    if end is not None:
        readers = flow.readers(_filled(flow, range(start.at, inner.stop)), end.at)
        last = max(readers, default=-1)
        if last >= 0:
            return start, end, _cut_behind(flow, start.at, last)
    return start, end, end


def _filled(flow: _Flow, region: range) -> set[str]:
    """Variables of lists and tuples that instructions make or make longer."""
    found: set[str] = set()
    for i in region:
        following = [inst.opname for inst in flow.all[i + 1 : i + 3]]
        grows = flow.all[i + 1].argval in ("append", "extend", "insert")
        if grows and following[0] in ("LOAD_METHOD", "LOAD_ATTR"):
            found |= flow.names(i)
        elif flow.all[i].opname in ("BUILD_LIST", "BUILD_TUPLE") and following[0] == "BINARY_OP":
            found |= flow.stored(i + 2)
        elif flow.all[i].opname in _MADE:
            found |= flow.stored(i + 1)
    i = region.stop  # a comprehension leaves its list on the stack
    while flow.all[i].opname in ("END_FOR", "POP_TOP", "SWAP") or flow.stored(i):
        found |= flow.stored(i)
        i += 1
    return found


def _call_around(flow: _Flow, offset: int) -> _Region:
    """The instructions of the call at `offset`, from the first one that loads what it takes.

    Raises:
        _NoCut: it is no call, or is in a `try` or a `with`, assigns a variable or is entered elsewhere.
    """
    at = flow.position(offset)
    if at < 0 or not flow.all[at].opname.startswith("CALL") or flow.depth(at + 1) < 1:
        raise _NoCut
    base = flow.depth(at + 1) - 1
    start = next((i for i in range(at, -1, -1) if flow.depth(i) == base), -1)
    region = range(start, at + 1)
    if not flow.is_closed(region):
        raise _NoCut
    if start < 0 or any(flow.stored(i) or flow.all[i].exn_tab_entry for i in region):
        raise _NoCut
    return _Region(region, region.stop)


def _comprehension_around(flow: _Flow, offset: int) -> _Region | None:
    """The outermost comprehension around `offset`, with what it iterates over; None if there is none.

    It saves the variables of its loop and restores them behind it (PEP 709), also after an exception. A
    function of its own needs neither.
    """
    names = [inst.opname for inst in flow.all]
    at = flow.position(offset)
    for first in range(at):
        if names[first] != "LOAD_FAST_AND_CLEAR":
            continue
        base = flow.depth(first) - 1  # without the iterator
        made = next(i for i in range(first, len(names)) if names[i].startswith("BUILD"))
        saved = [inst.argval for inst in flow.all[first:made] if "AND_CLEAR" in inst.opname]
        end = base + len(saved) + 1  # with the result
        start = next((i for i in range(first, -1, -1) if flow.depth(i) == base), -1)
        stop = next((i for i in range(made + 1, len(names)) if flow.depth(i) == end), -1)
        if start >= 0 and at < stop:
            return _comprehension(flow, range(start, stop), tuple(saved))
    return None


def _comprehension(flow: _Flow, inner: range, saved: tuple[str, ...]) -> _Region | None:
    """Instructions up to a result on the saved values, if they assign nothing else."""
    own = {flow.all[i].argval for i in inner if flow.all[i].opname == "LOAD_FAST_AND_CLEAR"}
    for i in inner:
        plain = flow.all[i].exn_tab_entry is None or flow.only_restores(i)
        if not plain or not flow.stored(i) <= own or flow.all[i].opname == "MAKE_CELL":
            return None
    kept = []
    stop, restored = inner.stop, 0
    while restored < len(saved):
        inst = flow.all[stop]
        if inst.opname == "STORE_FAST" and inst.argval in own:
            restored += 1
        elif inst.opname in ("STORE_FAST", "POP_TOP"):  # of the result, before what was saved
            kept.append(stop)
        elif inst.opname != "SWAP":
            return None
        stop += 1
    region = _Region(inner, stop, tuple(kept), saved)
    return region if flow.is_closed(range(inner.start, stop)) else None


class _Flow:
    """The control flow of a function, by the positions of its instructions."""

    def __init__(self, code: types.CodeType) -> None:
        self.code = code
        self.all = bytecode.cleaned_instructions(code)
        self._index = {inst: i for i, inst in enumerate(self.all)}
        self.jumps = {i: self._index[inst.target] for i, inst in enumerate(self.all) if inst.target}
        """Targets by position."""
        count = code.co_argcount + code.co_kwonlyargcount
        count += bool(code.co_flags & 4) + bool(code.co_flags & 8)  # *args, **kwargs
        self._given = frozenset(code.co_varnames[:count])
        self._states = self._forward()

    def position(self, offset: int) -> int:
        """The instruction at an offset; -1 if there is none."""
        return next((i for i, inst in enumerate(self.all) if inst.offset == offset), -1)

    def depth(self, i: int) -> int:
        """Of the stack before an instruction; -1 if no path leads to it."""
        return self._states[i][0] if i in self._states else -1

    def names(self, i: int) -> frozenset[str]:
        """The local variable that an instruction uses, if any."""
        inst = self.all[i]
        uses = inst.opcode in analysis.HASLOCAL or inst.opcode in analysis.HASFREE
        return frozenset([inst.argval]) if uses else frozenset()

    def stored(self, i: int) -> frozenset[str]:
        """The local variable that an instruction assigns, if any."""
        return self.names(i) if "STORE" in self.all[i].opname else frozenset()

    def readers(self, names: Set[str], start: int) -> Iterator[int]:
        """Instructions from `start` on that read a variable as it is there."""
        for name in names:
            ahead, seen = [start], set[int]()
            while ahead:
                i = ahead.pop()
                if i in seen or name in self.stored(i):
                    continue
                seen.add(i)
                ahead += [f for f, _ in self._successors(i)]
                if name in self.names(i):
                    yield i

    def is_closed(self, region: range) -> bool:
        """Whether no jump leads into or out of these instructions."""
        return all((i in region) == (goal in region) for i, goal in self.jumps.items())

    def only_restores(self, i: int) -> bool:
        """Whether an exception at an instruction restores variables and goes on."""
        first = self._index[self.all[i].exn_tab_entry.target]
        names = [inst.opname for inst in self.all[first:]]
        handler = names[: names.index("RERAISE")] if "RERAISE" in names else names
        return {*handler} <= {"SWAP", "POP_TOP", "STORE_FAST"}

    def cut(self, at: int) -> _Cut:
        """A cut at this position.

        Raises:
            _NoCut: it is in a `with` or a `try`, or a variable may have a value or not.
        """
        if self.depth(at) != 0 or self.all[at].exn_tab_entry:
            raise _NoCut
        used = {name for i in self.reachable(at, raises=True) for name in self.names(i)}
        return self._cut(at, self._read_from()[at], used)

    def cut_of(self, region: range) -> _Cut:
        """A cut at the start of instructions that assign nothing that is read behind, for these alone.

        Raises:
            _NoCut: a variable may have a value or not.
        """
        used: set[str] = set()
        read: set[str] = set()
        own: set[str] = set()  # variables of the comprehension
        for i in region:
            used |= self.names(i)
            if self.all[i].opname == "LOAD_FAST_AND_CLEAR":
                own |= self.names(i)
            read |= self.names(i) - own - self.stored(i)
        return self._cut(region.start, read, used)

    def _cut(self, at: int, read: Set[str], used: Set[str]) -> _Cut:
        shared = {*self.code.co_cellvars, *self.code.co_freevars}
        known = self._states[at][1]
        before = self._given.union(*map(self.stored, self.reachable(0, at, raises=True)))
        if (read - known - shared) & before:
            raise _NoCut
        return _Cut(at, tuple(sorted(read & known - shared)), tuple(sorted(used & shared)))

    def _successors(self, i: int) -> Iterator[tuple[int, bool]]:
        """The next instructions, and whether they are reached by an exception."""
        inst = self.all[i]
        if inst.exn_tab_entry:
            yield self._index[inst.exn_tab_entry.target], True
        if i in self.jumps:
            yield self.jumps[i], False
        if inst.opcode not in analysis.TERMINAL_OPCODES and i + 1 < len(self.all):
            yield i + 1, False

    def reachable(self, start: int, stop: int = -1, raises: bool = False) -> set[int]:
        """Positions reachable from `start` before `stop`; with `raises` also by exceptions."""
        seen: set[int] = set()
        ahead = [start]
        while ahead:
            i = ahead.pop()
            if i != stop and i not in seen:
                seen.add(i)
                ahead += [f for f, raised in self._successors(i) if raises or not raised]
        return seen

    def _forward(self) -> dict[int, tuple[int, frozenset[str]]]:
        """Before each instruction: the depth of the stack, and the variables with a value on each path."""
        found = {0: (0, self._given)}
        ahead = [0]
        while ahead:
            i = ahead.pop()
            inst, (depth, known) = self.all[i], found[i]
            after = known | self.stored(i)
            if inst.opname in ("DELETE_FAST", "LOAD_FAST_AND_CLEAR"):
                after -= {inst.argval}
            # Instructions that torch has replaced lack an argument, but need none.
            argument = (inst.arg or 0) if inst.opcode >= dis.HAVE_ARGUMENT else None
            for following, raised in self._successors(i):
                if raised:
                    entry = inst.exn_tab_entry
                    now = entry.depth + int(entry.lasti) + 1, known & after
                else:
                    jumps = following == self.jumps.get(i)
                    now = depth + dis.stack_effect(inst.opcode, argument, jump=jumps), after
                before = found.get(following, now)
                merged = before[0], before[1] & now[1]
                if following not in found or merged != before:
                    found[following] = merged
                    ahead.append(following)
        return found

    def _read_from(self) -> list[frozenset[str]]:
        """The local variables that a path from an instruction reads before it assigns them."""
        found: list[frozenset[str]] = [frozenset() for _ in self.all]
        changed = True
        while changed:
            changed = False
            for i in range(len(self.all) - 1, -1, -1):
                stored = self.stored(i)
                behind = self.names(i) - stored
                for following, raised in self._successors(i):
                    # The instruction that raises has not stored.
                    behind |= found[following] - (frozenset() if raised else stored)
                changed |= behind != found[i]
                found[i] = behind
        return found


# ---- writing the functions -------------------------------------------------------------------------


def _function(
    code: types.CodeType, begin: _Cut | None, end: _Cut | None, rest: types.CodeType | None
) -> types.CodeType:
    """The part of a function from `begin` to `end`, where it calls `rest`; None: from its start, to its end.

    Raises:
        _NoCut: torch's assembler does not take the instructions.
    """
    body = bytecode.cleaned_instructions(code)
    enter, changed = _entered(code, body, begin)
    if end is not None:
        _insert(
            body, range(end.at, end.at), [*_open(code), *_call(end, rest), _new("RETURN_VALUE")]
        )
    return _assembled(code, enter + body, changed)


def _rounds(code: types.CodeType, begin: _Cut, end: _Cut) -> types.CodeType:
    """The part of a function from `begin` to `end`, which returns the variables that are read from there on."""
    body = bytecode.cleaned_instructions(code)
    enter, changed = _entered(code, body, begin)
    leave = [_new("LOAD_FAST", argval=name) for name in end.arguments]
    leave += [bytecode.create_build_tuple(len(leave)), _new("RETURN_VALUE")]
    _insert(body, range(end.at, end.at), leave)
    return _assembled(code, enter + body, changed)


def _calling_rounds(
    code: types.CodeType,
    begin: _Cut,
    end: _Cut,
    rounds: types.CodeType,
    last: _Cut | None,
    rest: types.CodeType | None,
) -> types.CodeType:
    """The part of a function from `begin` to `last`, where it calls `rest`, with a call of `rounds` in place of
    the instructions up to `end`."""
    body = bytecode.cleaned_instructions(code)
    if last is not None:
        _insert(body, range(last.at, last.at), [*_call(last, rest), _new("RETURN_VALUE")])
    call = [*_call(begin, rounds), _new("UNPACK_SEQUENCE", arg=len(end.arguments))]
    call += [_new("STORE_FAST", argval=name) for name in end.arguments]
    call.append(bytecode.create_jump_absolute(body[end.at]))
    _insert(body, range(begin.at, begin.at), call)
    enter, changed = _entered(code, body, begin)
    return _assembled(code, enter + body, changed)


def _part(code: types.CodeType, begin: _Cut, region: _Region) -> types.CodeType:
    """The part of a function from `begin`, at the start of a region, which returns its value."""
    body = bytecode.cleaned_instructions(code)
    for i in region.inner:
        body[i].exn_tab_entry = None  # it would restore variables of the whole function
    enter, changed = _entered(code, body, begin)
    leave = []
    for name in reversed(region.saved):
        leave += [_new("SWAP", arg=2), _new("STORE_FAST", argval=name)]
    end = region.inner.stop
    _insert(body, range(end, end), [*leave, _new("RETURN_VALUE")])
    return _assembled(code, enter + body, changed)


def _with_call(
    code: types.CodeType, begin: _Cut, region: _Region, part: types.CodeType
) -> types.CodeType:
    """A function with a call of `part` in place of a region."""
    body = bytecode.cleaned_instructions(code)
    kept = [body[i] for i in region.kept]
    _insert(body, range(begin.at, region.stop), _call(begin, part) + kept)
    return _assembled(code, body, {})


def _entered(
    code: types.CodeType, body: list[Any], begin: _Cut | None
) -> tuple[list[Any], dict[str, Any]]:
    """The instructions in front of a body that starts at `begin`, and what of the code is another."""
    if begin is None:
        return [], {}
    enter = [_new("COPY_FREE_VARS", arg=len(begin.cells))] if begin.cells else []
    enter += [_new("RESUME", arg=0), bytecode.create_jump_absolute(body[begin.at])]
    others = [name for name in code.co_varnames if name not in begin.arguments]
    return enter, dict(
        co_argcount=len(begin.arguments),
        co_posonlyargcount=0,
        co_kwonlyargcount=0,
        co_varnames=(*begin.arguments, *others),
        co_cellvars=(),
        co_freevars=begin.cells,
        co_flags=code.co_flags & ~(4 | 8),  # no *args, no **kwargs
    )


def _insert(body: list[Any], place: range, new: list[Any]) -> None:
    """Put instructions in place of others; jumps to the first of those lead to them."""
    goal = body[place.start]
    for inst in new:
        inst.copy_positions(goal)
    for inst in body:
        inst.target = new[0] if inst.target is goal else inst.target
    body[place.start : place.stop] = new


def _assembled(code: types.CodeType, body: list[Any], changed: dict[str, Any]) -> types.CodeType:
    """A function of these instructions.

    Raises:
        _NoCut: torch's assembler does not take them.
    """
    keys = bytecode.get_code_keys()
    options = {key: getattr(code, key) for key in keys} | changed
    try:
        live = analysis.remove_dead_code(body)
        _, made = bytecode.clean_and_assemble_instructions(live, keys, options)
    except (AssertionError, KeyError) as error:  # how torch's assembler refuses instructions
        raise _NoCut from error
    return made


def _open(code: types.CodeType) -> list[Any]:
    """Instructions that let the graph break, which Dynamo refuses in the first ones behind another break."""
    if _IN_PROLOGUE not in code.co_varnames:
        return []
    return [_new("LOAD_CONST", argval=False), _new("STORE_FAST", argval=_IN_PROLOGUE)]


def _call(cut: _Cut, rest: types.CodeType | None) -> list[Any]:
    """Instructions that call `rest`."""
    attributes = sys.version_info >= (3, 13)  # of a function are set behind its making
    make = [_new("LOAD_FAST" if attributes else "LOAD_CLOSURE", argval=name) for name in cut.cells]
    if make:
        make.append(bytecode.create_build_tuple(len(make)))
    cells = 8 if cut.cells else 0
    make.append(_new("LOAD_CONST", argval=rest))
    make.append(_new("MAKE_FUNCTION", arg=None if attributes else cells))
    if attributes and cells:
        make.append(_new("SET_FUNCTION_ATTRIBUTE", arg=cells))
    call: list[Any] = bytecode.add_push_null(make)
    call += [_new("LOAD_FAST", argval=name) for name in cut.arguments]
    call += bytecode.create_call_function(len(cut.arguments), False)
    return call
