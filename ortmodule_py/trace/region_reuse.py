"""Copies the ATen calls of a traced region to where the torch-level graph repeats it.

A fake tensor with symbolic sizes takes about a millisecond to make, and a call of a layer makes several.
So only the first of equal layers is traced; of the others only the results are made.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, fx

from ortmodule_py.base.changing_numbers import changes
from ortmodule_py.base.errors import origin_of
from ortmodule_py.trace import record
from ortmodule_py.trace.repeats import (
    Repeat,
    attribute_of,
    calls_of,
    describe,
    element_of,
    find_repeats,
)

_SELECT = torch.ops.aten.select.int


@dataclass
class _Traced:
    """What the trace of one torch-level call left."""

    recorded: list[fx.Node] = field(default_factory=list)
    """Its ATen nodes."""
    state: Any = None
    """Modes behind it."""
    result: Any = None
    """What it returned; afterwards, for calls whose result a repeat makes anew, a `_Result` or a number."""
    written: set[int] = field(default_factory=set)
    """Storages that it changed in place; of a copy, those that its source changed."""
    changed: set[int] = field(default_factory=set)
    """The same; of a copy, only those of tensors from outside of the copied region."""
    checkpoints: int = 0
    copyable: bool = True


@dataclass
class _Entry:
    """The state before a region that is a source."""

    state: Any
    values: dict[fx.Node, tuple[Any, fx.Node | None]]
    """What the region reads from outside -> (description, its ATen node)."""
    tensors: dict[fx.Node, Any]
    """Those of them that are tensors; they stay alive, so that no new storage gets one's address."""
    left: dict[fx.Node, fx.Node] | None = None
    """The ATen nodes of these tensors behind the region; None before its end."""


class RegionReuse:
    """The repeats of one graph, and what was traced of their sources."""

    def __init__(self, graph: fx.Graph) -> None:
        self._calls = calls_of(graph)
        self._positions = {node: i for i, node in enumerate(self._calls)}
        self.repeats = {repeat.start: repeat for repeat in find_repeats(graph)}
        """First call -> region."""
        self._by_source: dict[int, list[Repeat]] = defaultdict(list)
        self._by_end: dict[int, list[Repeat]] = defaultdict(list)
        """Last call of the source -> regions."""
        for repeat in self.repeats.values():
            self._by_source[repeat.source].append(repeat)
            self._by_end[repeat.source + repeat.length - 1].append(repeat)
        self._kept = self._results_to_keep()
        self._entries: dict[tuple[int, int], _Entry] = {}
        self._traced: dict[int, _Traced] = {}

    def _results_to_keep(self) -> set[int]:
        """Calls whose results a repeat makes anew; a source may itself contain repeats."""
        kept: set[int] = set()
        for repeat in sorted(self.repeats.values(), key=lambda repeat: -repeat.start):
            kept.update(repeat.source + offset for offset in repeat.outputs)
            inside = range(repeat.start, repeat.start + repeat.length)
            kept.update(i - repeat.start + repeat.source for i in kept.intersection(inside))
        return kept

    @contextlib.contextmanager
    def watched(
        self, node: fx.Node, env: Mapping[fx.Node, Any], state: Any, trace: Any
    ) -> Iterator[_Traced]:
        """Around the trace of a node, whose result, writes and later state the caller sets."""
        traced = _Traced()
        position = self._positions.get(node)
        if position is None:
            yield traced
            return
        self._enter_sources(position, env, state)
        last, checkpoints = record.last_recorded(), trace.checkpoints
        facts = len(trace.fixed_numbers), len(trace.reshapes)
        yield traced
        # A view of what was changed in place is computed again, and recorded, where its node is asked for.
        kept = _plain_result(traced.result) if position in self._kept else None
        backwards = reversed(record.recorded_graph().nodes)
        recorded = list(itertools.takewhile(lambda n: n is not last, backwards))[::-1]
        # Sizes are equal in a repeat, so that it may read those of its source.
        traced.recorded = [known for known in recorded if not _is_number(known)]
        traced.checkpoints = trace.checkpoints - checkpoints
        traced.copyable = facts == (len(trace.fixed_numbers), len(trace.reshapes))
        traced.copyable &= not any(map(_is_new_number, recorded))
        self._traced[position] = replace(traced, result=kept, changed=traced.written)
        self._leave_sources(position)

    def _enter_sources(self, position: int, env: Mapping[fx.Node, Any], state: Any) -> None:
        """Note what the regions read that are copied later and begin here."""
        for repeat in self._by_source.get(position, ()):
            values = {a: env[a] for a in repeat.externals}
            self._entries[repeat.source, repeat.start] = _Entry(
                state,
                {a: (_described(value), _node_of(value)) for a, value in values.items()},
                {a: value for a, value in values.items() if record.is_traced(value)},
            )

    def _leave_sources(self, position: int) -> None:
        """Note how the sources that end here leave the tensors that they read."""
        for repeat in self._by_end.get(position, ()):
            entry = self._entries.get((repeat.source, repeat.start))
            if entry is not None:
                entry.left = {a: record.node_of(value) for a, value in entry.tensors.items()}

    def reuse(
        self, node: fx.Node, env: Mapping[fx.Node, Any], state: Any, trace: Any
    ) -> dict[fx.Node, Any] | None:
        """Copy the region that begins at `node`; returns the values of its nodes.

        None if no region begins here, or if its source was not as its repeat would be.
        """
        repeat = self.repeats.get(self._positions.get(node, -1))
        if repeat is None:
            return None
        self._enter_sources(repeat.start, env, state)
        entry = self._entries.get((repeat.source, repeat.start))
        changed = self._changed(repeat, entry, env) if entry is not None else None
        if entry is None or changed is None:
            return None
        mapping = self._mapping(repeat, entry, env, state)
        if mapping is None or (changed and repeat.elements):
            return None
        storages = {
            record.storage_key(entry.tensors[a]): record.storage_key(env[repeat.externals[a]])
            for a in changed
        }
        values: dict[fx.Node, Any] = {}
        for offset in range(repeat.length):
            traced = self._traced[repeat.source + offset]
            call = self._calls[repeat.start + offset]
            twins = _twins(self._calls[repeat.source + offset], call)
            copies = [_copy(recorded, mapping, twins) for recorded in traced.recorded]
            if offset in repeat.elements:
                _take_element(copies, self._calls[repeat.source + offset], call)
            result = _map_result(traced.result, mapping)
            here = {storages[storage] for storage in traced.changed if storage in storages}
            self._traced[repeat.start + offset] = replace(
                traced, recorded=copies, result=result, changed=here
            )
            trace.changes |= dict.fromkeys(here, origin_of(call))
            trace.checkpoints += traced.checkpoints
            values[call] = _fresh(result, trace.fake_mode) if offset in repeat.outputs else None
        for a, node in changed.items():
            record.overwrite(env[repeat.externals[a]], mapping.get(node, node), trace.fake_mode)
        self._leave_sources(repeat.start + repeat.length - 1)
        return values

    def _changed(
        self, repeat: Repeat, entry: _Entry, env: Mapping[fx.Node, Any]
    ) -> dict[fx.Node, fx.Node] | None:
        """What the source reads and changes in place -> the ATen node that computes it afterwards.

        None if that is more than buffers of its own, as those of a batch norm are.
        """
        written: set[int] = set()
        for offset in range(repeat.length):
            written |= self._traced[repeat.source + offset].changed
        changed = [a for a, x in entry.tensors.items() if record.storage_key(x) in written]
        if not changed:
            return {}
        copied = {a: env[repeat.externals[a]] for a in entry.tensors}
        if entry.left is None or not all(map(record.is_traced, copied.values())):
            return None
        for tensors in (entry.tensors, copied):
            keys = list(map(record.storage_key, tensors.values()))
            if any(keys.count(record.storage_key(tensors[a])) > 1 for a in changed):
                return None
        if not all(_is_buffer(a) and _is_buffer(repeat.externals[a]) for a in changed):
            return None
        return {a: entry.left[a] for a in changed}

    def _mapping(
        self, repeat: Repeat, entry: _Entry, env: Mapping[fx.Node, Any], state: Any
    ) -> dict[fx.Node, fx.Node] | None:
        """ATen nodes that the source reads -> those that its copy reads; None if it may not be copied."""
        traced = [self._traced[repeat.source + i] for i in range(repeat.length)]
        if not all(call.copyable for call in traced):
            return None
        if not entry.state == state == traced[-1].state:
            return None
        inside = {node for call in traced for node in call.recorded}
        mapping: dict[fx.Node, fx.Node] = {}
        for a, b in repeat.externals.items():
            described, node = entry.values[a]
            other = _node_of(env[b])
            if described != _described(env[b]) or (node is None) != (other is None):
                return None
            if node is None or other is None:
                if isinstance(env[b], Tensor):
                    return None  # a tensor of a functional transform
            elif mapping.setdefault(node, other) is not other:
                return None
        for offset in repeat.elements:
            source, call = (self._calls[at + offset] for at in (repeat.source, repeat.start))
            if not _map_element(traced[offset].recorded, source, env[call.args[0]], call, mapping):
                return None
        reads = (read for node in inside for read in node.all_input_nodes)
        if not all(read in inside or read in mapping or _is_number(read) for read in reads):
            return None
        kept = (call.result.node for call in traced if isinstance(call.result, _Result))
        if not all(node in inside or node in mapping for node in kept):
            return None
        if any(_is_overwritten(traced[i].result, traced[i + 1 :]) for i in repeat.outputs):
            return None
        return mapping


@dataclass
class _Result:
    """A tensor that a call returned: its fake tensor and ATen node at that time."""

    fake: Tensor
    node: fx.Node
    storage: int
    alive: Any
    """The tensor itself, so that no new storage gets the address of its own."""


def _is_buffer(node: fx.Node) -> bool:
    """Whether it is an argument of the piece that needs no gradient."""
    example = node.meta.get("example_value")
    return node.op == "placeholder" and isinstance(example, Tensor) and not example.requires_grad


def _is_overwritten(result: Any, later: Sequence[_Traced]) -> bool:
    """Whether a result is written in place after it was kept."""
    return isinstance(result, _Result) and any(result.storage in call.written for call in later)


def _plain_result(result: Any) -> Any:
    if not record.is_traced(result):
        return result
    node = _node_of(result)
    assert node is not None
    return _Result(record.plain(result), node, record.storage_key(result), result)


def _map_result(result: Any, mapping: dict[fx.Node, fx.Node]) -> Any:
    if not isinstance(result, _Result):
        return result
    return replace(result, node=mapping[result.node])


def _fresh(result: Any, fake_mode: Any) -> Any:
    if not isinstance(result, _Result):
        return result
    return record.traced_like(result.fake, result.node, fake_mode)


def _described(value: Any) -> Any:
    return describe(record.plain(value))


def _node_of(value: Any) -> fx.Node | None:
    """The ATen node that computes a traced tensor; None for other values."""
    return record.node_of(value) if record.is_traced(value) else None


def _is_number(node: fx.Node) -> bool:
    known = node.meta.get("val")
    return isinstance(known, (torch.SymInt, int, bool, float))


def _is_new_number(node: fx.Node) -> bool:
    """Whether its result may be a number that only the data tells, or one that changes."""
    known = node.meta.get("val")
    return changes(known) or bool(node.meta.get("unbacked_bindings"))


def _copy(node: fx.Node, mapping: dict[fx.Node, fx.Node], twins: dict[fx.Node, fx.Node]) -> fx.Node:
    copy = node.graph.node_copy(node, lambda read: mapping.get(read, read))
    mapping[node] = copy
    call = twins.get(node.meta.get("torch_call"))
    if call is not None:
        copy.meta |= {"torch_call": call, "origin": origin_of(call)}
    return copy


def _map_element(
    recorded: list[fx.Node],
    source: fx.Node,
    operand: Any,
    call: fx.Node,
    mapping: dict[fx.Node, fx.Node],
) -> bool:
    """Whether a call's ATen calls can be copied with the index of `call`; elements of a tuple are mapped."""
    was, now = element_of(source), element_of(call)
    assert was is not None and now is not None
    if isinstance(operand, (tuple, list)):
        pair = [_node_of(operand[i]) for i in (was, now)]
        return not recorded and None not in pair and mapping.setdefault(*pair) is pair[1]
    takers = [node for node in recorded if node.target is _SELECT]
    return len(takers) == 1 and takers[0].args[2] == was


def _take_element(copies: list[fx.Node], source: fx.Node, call: fx.Node) -> None:
    """Let copies of the source's ATen calls take the element that `call` takes."""
    for node in copies:
        if node.target is _SELECT:
            node.args = (*node.args[:2], element_of(call))


def _twins(source: fx.Node, repeat: fx.Node) -> dict[fx.Node, fx.Node]:
    """Calls of the source, also those in bodies of higher-order operators -> calls of the repeat."""
    twins = {source: repeat}
    for a, b in zip(source.all_input_nodes, repeat.all_input_nodes, strict=False):
        if a.op == b.op == "get_attr":
            bodies = [attribute_of(n) for n in (a, b)]
            if all(isinstance(body, fx.GraphModule) for body in bodies):
                for inner, other in zip(*(body.graph.nodes for body in bodies), strict=True):
                    twins |= _twins(inner, other)
    return twins
