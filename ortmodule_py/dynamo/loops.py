"""Moves a loop that breaks the graph into a function of its own.

Dynamo gives up a whole function if the graph breaks in one of its loops. With the loop in a function, the
break is at the call of that function: what stands before and after the loop is captured, the loop runs in
Python, and the layers that it calls are captured one by one. Works on bytecode, as a function may have no
source.
"""

from __future__ import annotations

import copy
import dis
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch._dynamo.bytecode_analysis as analysis
import torch._dynamo.bytecode_transformation as bytecode

_VERSIONS = ((3, 11), (3, 12))
"""Versions of Python whose bytecode is known here; elsewhere Dynamo skips the function."""
_RETURNS = ("RETURN_VALUE", "RETURN_CONST")
_RESULT = "___ortmodule_result"
"""The local variable for the value that the loop returns from the function."""
_UNSET = "___ortmodule_unset"
"""Stands for a variable without a value."""
_STEPS_BACK = 64
"""Instructions before the loop that may compute what it iterates over."""

Instructions = list[Any]


@dataclass(frozen=True)
class Outlined:
    """A function whose loop is a function of its own."""

    code: types.CodeType
    """The function, which calls the loop. It has the variables of the original: guards read a frame's
    variables by position."""
    loop: types.CodeType


@dataclass(frozen=True)
class _Region:
    """The instructions of a loop, from the computation of what it iterates over to its end."""

    start: int
    end: int
    """The instruction at which all paths leave the loop, unless they return or raise."""
    inside: frozenset[int]
    arguments: tuple[str, ...]
    """Local variables that it reads."""
    results: tuple[str, ...]
    """Local variables that it assigns and that are read behind it."""
    unset: tuple[str, ...]
    """Those of `results` that it may leave without a value."""
    cells: tuple[str, ...]
    """Variables that it shares with nested functions or the enclosing one."""
    returns: bool
    depth: int
    """Values on the stack that belong to what stands around the loop."""


class _NoRegion(Exception):
    """The loop cannot be a function of its own."""


def outline(code: types.CodeType, offset: int) -> Outlined | None:
    """Outline the outermost loop around the instruction at `offset`, or None if that is not possible."""
    if sys.version_info[:2] not in _VERSIONS:
        return None
    try:
        region = _region(code, bytecode.cleaned_instructions(code), offset)
        loop = _loop(code, region)
        caller = _caller(code, region, loop)
    # The last three are of torch's tools for bytecode, where they meet what they do not know.
    except (_NoRegion, AssertionError, NotImplementedError, KeyError):
        return None  # the report names the graph break, as without outlining
    variables = ("co_varnames", "co_cellvars", "co_freevars")
    same = all(getattr(caller, kind) == getattr(code, kind) for kind in variables)
    return Outlined(caller, loop) if same else None


# ---- finding the loop ------------------------------------------------------------------------------


def _region(code: types.CodeType, instructions: Instructions, offset: int) -> _Region:
    """The outermost loop around an instruction, with one entry and one exit.

    Raises:
        _NoRegion: there is none.
    """
    flow = _Flow(code, instructions)
    at = next((i for i, inst in enumerate(instructions) if inst.offset == offset), -1)
    # What only leads out of a loop (`break` and what stands before it) is in the midst of its code.
    heads = [flow.jumps[i] for i in flow.jumps if flow.jumps[i] <= at <= i]
    loop = flow.loop_around(min(heads, default=at))
    if not loop:
        raise _NoRegion
    for start in flow.starts(min(loop)):
        for end in flow.ends(start, loop):
            inside = flow.reachable(start, {end: None}, flow.handler(start))
            outside = flow.reachable(0, {start: end})
            leaves_rest = min(flow.depth[i] for i in inside) >= flow.depth[start]
            if at in inside and inside.isdisjoint(outside) and leaves_rest:
                return _described(code, flow, start, end, inside)
    raise _NoRegion


def _described(
    code: types.CodeType, flow: _Flow, start: int, end: int, inside: frozenset[int]
) -> _Region:
    shared = {*code.co_cellvars, *code.co_freevars}
    used = {name for i in inside for name in flow.names(i)}
    stored = {name for i in inside for name in flow.stored(i)}
    assigned = flow.assigned()
    reads = used & flow.read_from(end)[start] - shared
    later = flow.read_from()
    arguments = (used & later[start] | reads) - shared & assigned[start]
    results = (stored & later[end]) - shared
    unset = results - assigned[end] - arguments
    known_before = {name for i in flow.depth if i not in inside for name in flow.stored(i)}
    deleted = {
        name for i in inside for name in flow.names(i) if flow.all[i].opname == "DELETE_FAST"
    }
    # What may have a value or not can be neither passed nor returned.
    if (reads - arguments) & known_before or unset & (reads | deleted | known_before):
        raise _NoRegion
    return _Region(
        start,
        end,
        inside,
        tuple(sorted(arguments)),
        tuple(sorted(results)),
        tuple(sorted(unset)),
        tuple(sorted(used & shared)),
        any(flow.all[i].opname in _RETURNS for i in inside),
        flow.depth[start],
    )


class _Flow:
    """The control flow of a function, by the positions of its instructions."""

    def __init__(self, code: types.CodeType, instructions: Instructions) -> None:
        self.all = instructions
        self._index = {inst: i for i, inst in enumerate(instructions)}
        self.jumps = {
            i: self._index[inst.target] for i, inst in enumerate(instructions) if inst.target
        }
        """Targets by position."""
        count = code.co_argcount + code.co_kwonlyargcount
        count += bool(code.co_flags & 4) + bool(code.co_flags & 8)  # *args, **kwargs
        self._given = frozenset(code.co_varnames[:count])
        self.depth = self._depths()
        """Of the stack before each instruction that is reachable."""

    def names(self, i: int) -> Iterator[str]:
        """The local variable that an instruction uses, if any."""
        inst = self.all[i]
        if inst.opcode in analysis.HASLOCAL or inst.opcode in analysis.HASFREE:
            yield inst.argval

    def stored(self, i: int) -> Iterator[str]:
        """The local variable that an instruction assigns, if any."""
        return self.names(i) if "STORE" in self.all[i].opname else iter(())

    def successors(self, i: int) -> Iterator[tuple[int, bool]]:
        """The next instructions, and whether they are reached by an exception."""
        inst = self.all[i]
        if inst.exn_tab_entry:
            yield self._index[inst.exn_tab_entry.target], True
        if i in self.jumps:
            yield self.jumps[i], False
        if inst.opcode not in analysis.TERMINAL_OPCODES and i + 1 < len(self.all):
            yield i + 1, False

    def handler(self, i: int) -> int | None:
        """Where an exception of this instruction goes."""
        entry = self.all[i].exn_tab_entry
        return self._index[entry.target] if entry else None

    def reachable(
        self,
        start: int,
        stops: dict[int, int | None],
        outer: int | None = None,
        raises: bool = True,
    ) -> frozenset[int]:
        """Positions reachable from `start`, but not by exceptions to `outer`, or by any unless `raises`.

        At one of `stops` the path goes on at its value, if any.
        """
        seen: set[int] = set()
        ahead: list[int] = [start]
        while ahead:
            i = ahead.pop()
            if i in stops:
                follower = stops[i]
                ahead += [] if follower is None or follower in seen else [follower]
            elif i not in seen:
                seen.add(i)
                ahead += [
                    f for f, raised in self.successors(i) if not raised or (raises and f != outer)
                ]
        return frozenset(seen)

    def starts(self, head: int) -> Iterator[int]:
        """Positions from the loop's head backwards where the loop may begin."""
        first = next(i for i, inst in enumerate(self.all) if inst.opname == "RESUME") + 1
        for i in range(head, max(first, head - _STEPS_BACK) - 1, -1):
            if self.depth.get(i, head) <= self.depth[head]:
                yield i

    def ends(self, start: int, loop: frozenset[int]) -> Iterator[int]:
        """Positions where paths out of the loop may meet, with the stack as at its start."""
        # Handlers of exceptions stand at the end of a function.
        last = max(self.reachable(min(loop), {}, raises=False) & loop)
        members = range(min(loop), last + 1)
        found = {f for i in members for f, raised in self.successors(i) if not raised} - loop
        depth = self.depth[start]
        for i in sorted(found):
            while self.depth.get(i, depth) > depth and i + 1 < len(self.all):
                i += 1
            if self.depth.get(i) == depth:
                yield i

    def loop_around(self, at: int) -> frozenset[int]:
        """All positions that lead to this one and are reached from it."""
        before: dict[int, list[int]] = {}
        for i in range(len(self.all)):
            for following, _ in self.successors(i):
                before.setdefault(following, []).append(i)
        leading: set[int] = set()
        ahead = list(before.get(at, ()))
        while ahead:
            i = ahead.pop()
            if i not in leading:
                leading.add(i)
                ahead += before.get(i, ())
        return self.reachable(at, {}) & leading if at in leading else frozenset()

    def _depths(self) -> dict[int, int]:
        depths = {0: 0}
        ahead = [0]
        while ahead:
            i = ahead.pop()
            inst = self.all[i]
            for following, raised in self.successors(i):
                if raised:
                    depth = inst.exn_tab_entry.depth + int(inst.exn_tab_entry.lasti) + 1
                else:
                    jumps = following == self.jumps.get(i)
                    depth = depths[i] + dis.stack_effect(inst.opcode, _argument(inst), jump=jumps)
                if following not in depths:
                    depths[following] = depth
                    ahead.append(following)
        return depths

    def read_from(self, end: int | None = None) -> list[set[str]]:
        """The local variables that a path from an instruction, up to `end`, reads before it assigns them."""
        found: list[set[str]] = [set() for _ in self.all]
        changed = True
        while changed:
            changed = False
            for i in range(len(self.all) - 1, -1, -1):
                own = set(self.names(i))
                stores = "STORE" in self.all[i].opname
                behind = set() if stores else own
                for following, raised in self.successors(i):
                    # The instruction that raises has not stored.
                    behind = behind | found[following] - (own if stores and not raised else set())
                behind = set() if i == end else behind
                changed |= behind != found[i]
                found[i] = behind
        return found

    def assigned(self) -> dict[int, frozenset[str]]:
        """The local variables that have a value on each path to an instruction."""
        known = {0: self._given}
        ahead = [0]
        while ahead:
            i = ahead.pop()
            inst = self.all[i]
            after = known[i]
            if inst.opname == "STORE_FAST":
                after |= {inst.argval}
            elif inst.opname in ("DELETE_FAST", "LOAD_FAST_AND_CLEAR"):
                after -= {inst.argval}
            for following, raised in self.successors(i):
                now = known[i] & after if raised else after
                before = known.get(following)
                merged = now if before is None else before & now
                if merged != before:
                    known[following] = merged
                    ahead.append(following)
        return known


def _argument(inst: Any) -> int | None:
    """What `dis.stack_effect` takes; instructions that torch has replaced lack it, but need none."""
    return (inst.arg or 0) if inst.opcode >= dis.HAVE_ARGUMENT else None


# ---- writing the two functions ---------------------------------------------------------------------

_new: Callable[..., Any] = bytecode.create_instruction


def _loop(code: types.CodeType, region: _Region) -> types.CodeType:
    """The function of the loop: returns `results`, whether the caller returns, and what."""
    instructions = bytecode.cleaned_instructions(code)
    leave = [_new("LOAD_FAST", argval=name) for name in region.results]
    if region.returns:
        leave += [_new("LOAD_CONST", argval=False), _new("LOAD_CONST", argval=None)]
    leave += [bytecode.create_build_tuple(len(leave)), _new("RETURN_VALUE")]
    body: Instructions = []
    for i, inst in enumerate(instructions):
        if i == region.end:
            body += leave
        returns = i in region.inside and inst.opname in _RETURNS
        body += _returned(inst, region) if returns else [inst]
    _redirect(body, instructions[region.end], leave[0])
    enter = [_new("COPY_FREE_VARS", arg=len(region.cells))] if region.cells else []
    enter.append(_new("RESUME", arg=0))
    for name in region.unset:
        enter += [_new("LOAD_CONST", argval=_UNSET), _new("STORE_FAST", argval=name)]
    enter.append(bytecode.create_jump_absolute(instructions[region.start]))
    _leave_handlers(instructions, region)
    others = [name for name in code.co_varnames if name not in region.arguments]
    return _assembled(
        code,
        enter + body,
        co_argcount=len(region.arguments),
        co_posonlyargcount=0,
        co_kwonlyargcount=0,
        co_varnames=(*region.arguments, *others, _RESULT),
        co_cellvars=(),
        co_freevars=region.cells,
        co_flags=code.co_flags & ~(4 | 8),  # no *args, no **kwargs
    )


def _leave_handlers(instructions: Instructions, region: _Region) -> None:
    """Leave the handlers around the loop to the caller, and its part of the stack."""
    outer = instructions[region.start].exn_tab_entry
    depth = region.depth
    for inst in instructions:
        entry = inst.exn_tab_entry
        if entry and outer and entry.target is outer.target:
            inst.exn_tab_entry = None
        elif entry:
            entry.depth -= depth


def _returned(inst: Any, region: _Region) -> Instructions:
    """A `return` in the loop, as a result of its function."""
    load = _new("LOAD_CONST", argval=inst.argval) if inst.opname == "RETURN_CONST" else None
    first = load or _new("STORE_FAST", argval=_RESULT)
    # The instruction itself stays the first one, as others jump to it.
    inst.opcode, inst.opname, inst.arg, inst.argval = first.opcode, first.opname, None, first.argval
    return [
        inst,
        *([_new("STORE_FAST", argval=_RESULT)] if load else []),
        *(_new("LOAD_CONST", argval=None) for _ in region.results),
        _new("LOAD_CONST", argval=True),
        _new("LOAD_FAST", argval=_RESULT),
        bytecode.create_build_tuple(len(region.results) + 2),
        _new("RETURN_VALUE"),
    ]


def _caller(code: types.CodeType, region: _Region, loop: types.CodeType) -> types.CodeType:
    """The function with a call of `loop` in place of it."""
    instructions = bytecode.cleaned_instructions(code)
    make = [_new("LOAD_CLOSURE", argval=name) for name in region.cells]
    if make:
        make.append(bytecode.create_build_tuple(len(make)))
    make += [
        _new("LOAD_CONST", argval=loop),
        _new("MAKE_FUNCTION", arg=8 if region.cells else 0),  # 8: with cells
    ]
    call = bytecode.add_push_null(make)
    call += [_new("LOAD_FAST", argval=name) for name in region.arguments]
    call += bytecode.create_call_function(len(region.arguments), False)
    call.append(_new("UNPACK_SEQUENCE", arg=len(region.results) + 2 * region.returns))
    call += [_new("STORE_FAST", argval=name) for name in region.results]
    skips = "POP_JUMP_FORWARD_IF_FALSE" if sys.version_info < (3, 12) else "POP_JUMP_IF_FALSE"
    for name in region.unset:
        otherwise = _new("NOP")
        call += [_new("LOAD_FAST", argval=name), _new("LOAD_CONST", argval=_UNSET)]
        call += [_new("IS_OP", arg=0), _new(skips, target=otherwise)]
        call += [_new("DELETE_FAST", argval=name), otherwise]
    if region.returns:
        drop = _new("POP_TOP")
        call += [_new(skips, target=drop), _new("RETURN_VALUE"), drop]
    call.append(bytecode.create_jump_absolute(instructions[region.end]))
    start = instructions[region.start]
    for inst in call:
        inst.copy_positions(start)
        inst.exn_tab_entry = copy.copy(start.exn_tab_entry)
    body = [*instructions[: region.start], *call, *instructions[region.start :]]
    _redirect(body, start, call[0])
    for inst in body:
        if inst.exn_tab_entry and inst.exn_tab_entry.start is start:
            inst.exn_tab_entry.start = call[0]
    return _assembled(code, body)


def _redirect(instructions: Instructions, old: Any, new: Any) -> None:
    for inst in instructions:
        if inst.target is old:
            inst.target = new


def _assembled(code: types.CodeType, instructions: Instructions, **changed: Any) -> types.CodeType:
    """`code` with other instructions and attributes."""
    live = analysis.remove_dead_code(instructions)
    keys = bytecode.get_code_keys()
    options = {key: getattr(code, key) for key in keys} | changed
    _, made = bytecode.clean_and_assemble_instructions(live, keys, options)
    result: types.CodeType = made
    return result
