"""Regions of a torch-level graph that repeat an earlier region: layers of a transformer, rounds of a loop over time.

Only Dynamo's graph is read: its calls, its constants, and its descriptions of values. Guards are not
affected, since Dynamo has traced every call by itself.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

Key = Any
"""A hashable description."""

STORAGE = "ortmodule_storage"
"""Of a node whose example value is one of an equal layer, in `meta`: what stands for its memory."""
_BEGINNING = 3
"""Calls by which earlier regions are looked up."""
_SMALLEST = 4
"""Calls of a region, those of checkpointed bodies included; smaller ones cost as much to copy as to trace."""
_RESULT = 2
"""Calls that take as long to trace as a result of a copied region takes to make anew."""
_CELLS = {
    torch.lstm_cell: 12,
    torch.gru_cell: 12,
    torch.rnn_tanh_cell: 5,
    torch.rnn_relu_cell: 5,
}
"""Functions that are several ATen calls -> how many."""
_CANDIDATES = 16
"""Earlier positions that are compared, of those that begin with the same calls."""


@dataclass
class Repeat:
    """A region of calls that repeats an earlier one; positions count calls."""

    source: int
    """The first call of the earlier region."""
    start: int
    """The first call of this region."""
    length: int
    externals: dict[fx.Node, fx.Node]
    """What the source reads from outside -> what this region reads instead."""
    outputs: list[int]
    """Offsets of the calls whose results are read behind this region."""
    elements: list[int]
    """Offsets of the calls that take another element of what both regions read, as steps of a loop do."""


def describe(value: Any) -> Key:
    """What a trace may depend on: sizes, strides and type of a tensor, the expression of a size.

    Not where in its storage a tensor begins, as steps of a sequence differ in that: only `as_strided` depends
    on it, which is never copied.
    """
    if isinstance(value, Tensor):
        sizes = tuple(map(_number, (*value.shape, *value.stride())))
        return value.dtype, value.device, value.requires_grad, len(value.shape), sizes
    if isinstance(value, (list, tuple)):
        return type(value), tuple(map(describe, value))
    return type(value), _number(value)


def _number(value: Any) -> Any:
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return value.node.expr
    if isinstance(value, (float, complex)):
        return repr(value)  # 0.0 == -0.0
    return value if isinstance(value, (int, str, type(None))) else id(value)


def calls_of(graph: fx.Graph) -> list[fx.Node]:
    """The nodes that may belong to a region, in order."""
    return [node for node in graph.nodes if node.op not in ("placeholder", "output")]


def operands(node: fx.Node) -> list[fx.Node]:
    """The nodes that a call reads, once for each time that it names them."""
    found: list[fx.Node] = []
    fx.map_arg((node.args, node.kwargs), found.append)
    return found


def attribute_of(node: fx.Node) -> Any:
    """What a `get_attr` node reads: the body of a higher-order operator, or a constant."""
    value: Any = node.graph.owning_module
    for name in str(node.target).split("."):
        value = getattr(value, name)
    return value


def element_of(node: fx.Node) -> int | None:
    """The index of a call that takes one element along an axis, or one of a tuple: `x[:, 3]`; else None."""
    numbers = [part for part in _index_of(node) if not _is_whole(part)]
    known = len(numbers) == 1 and type(numbers[0]) is int and numbers[0] >= 0
    return numbers[0] if known else None


def _index_of(node: fx.Node) -> tuple[Any, ...]:
    """What a call reads of its first operand, axis by axis; () for other calls."""
    if node.target is operator.getitem and isinstance(node.args[0], fx.Node):
        index = node.args[1]
        return index if isinstance(index, tuple) else (index,)
    by_axis = node.target in ("select", torch.select) and len(node.args) == 3
    return (
        (*(slice(None),) * axis, node.args[2])
        if by_axis and type(axis := node.args[1]) is int
        else ()
    )


def _is_whole(part: Any) -> bool:
    return part is None or part is ... or part == slice(None)


def find_repeats(graph: fx.Graph) -> list[Repeat]:
    """Regions that repeat an earlier one, in order and apart from each other.

    At each call the longest earlier match wins, as in LZ77, so a stack of n equal layers takes about
    log n regions.
    """
    return _Search(graph).run()


class _Search:
    def __init__(self, graph: fx.Graph) -> None:
        self.calls = calls_of(graph)
        self.positions = {node: i for i, node in enumerate(self.calls)}
        keys = list(map(_call_key, self.calls))
        self.keys = _interned(keys)
        self.forms = _interned(map(_form_key, self.calls, keys))
        """Equal also where other elements are taken."""
        self.operands = list(map(operands, self.calls))
        self.sizes = list(map(_size, self.calls))
        last = len(self.calls)
        self.last_use = [
            max((self.positions.get(user, last) for user in node.users), default=-1)
            for node in self.calls
        ]

    def run(self) -> list[Repeat]:
        found: list[Repeat] = []
        starts: dict[tuple[int, ...], list[int]] = defaultdict(list)
        at = 0
        while at + _BEGINNING <= len(self.calls):
            beginning = tuple(self.forms[at : at + _BEGINNING])
            repeat = self._longest(starts[beginning], at)
            starts[beginning].append(at)
            if repeat is not None:
                found.append(repeat)
            at += 1 if repeat is None else repeat.length
        return found

    def _longest(self, sources: Sequence[int], start: int) -> Repeat | None:
        best: Repeat | None = None
        for source in sources[:_CANDIDATES]:
            length = self._extent(source, start)
            if best is not None and length <= best.length:
                continue
            repeat = self._with_outputs(source, start, length)
            if repeat is not None and (best is None or repeat.length > best.length):
                best = repeat
        return best

    def _extent(self, source: int, start: int) -> int:
        """The number of calls from `start` on that equal those from `source` on."""
        externals: dict[fx.Node, fx.Node] = {}
        length = 0
        while source + length < start and start + length < len(self.calls):
            if self.forms[source + length] != self.forms[start + length]:
                break
            if self._is_other_element(source, start, length) and not self._reads_outside(
                source, start, length
            ):
                break
            pairs = zip(self.operands[source + length], self.operands[start + length], strict=True)
            if not all(self._match(a, b, source, start, externals) for a, b in pairs):
                break
            length += 1
        return length

    def _is_other_element(self, source: int, start: int, offset: int) -> bool:
        return self.keys[source + offset] != self.keys[start + offset]

    def _reads_outside(self, source: int, start: int, offset: int) -> bool:
        """Whether both calls read values that are computed before their regions."""
        return all(
            self.positions.get(operand, -1) < begin
            for begin in (source, start)
            for operand in self.operands[begin + offset]
        )

    def _match(
        self, a: fx.Node, b: fx.Node, source: int, start: int, externals: dict[fx.Node, fx.Node]
    ) -> bool:
        offset_a = self.positions.get(a, -1) - source
        offset_b = self.positions.get(b, -1) - start
        if offset_a >= 0 or offset_b >= 0:
            return offset_a == offset_b
        if a not in externals and not _equal_values(a, b):
            return False
        return externals.setdefault(a, b) is b

    def _with_outputs(self, source: int, start: int, length: int) -> Repeat | None:
        """The longest such region whose results can be made anew: tensors that share no memory."""
        for end in range(length, 0, -1):
            size = sum(self.sizes[start : start + end])
            if size < _SMALLEST:
                return None
            outputs = [i for i in range(end) if self.last_use[start + i] >= start + end]
            if size < _SMALLEST * 2 and size < _RESULT * (1 + len(outputs)):
                continue
            externals: dict[fx.Node, fx.Node] = {}
            for i in range(end):
                for a, b in zip(self.operands[source + i], self.operands[start + i], strict=True):
                    if self.positions.get(a, -1) < source:
                        externals[a] = b
            results = [self.calls[start + i] for i in outputs]
            if _are_apart(results, set(map(_storage, externals.values()))):
                others = [i for i in range(end) if self._is_other_element(source, start, i)]
                return Repeat(source, start, end, externals, outputs, others)
        return None


def _interned(keys: Iterable[Key]) -> list[int]:
    numbers: dict[Key, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def _equal_values(a: fx.Node, b: fx.Node) -> bool:
    known = [node.meta.get("example_value") for node in (a, b)]
    if any(map(_is_of_transform, known)):
        return False
    if not all(isinstance(value, (Tensor, torch.SymInt, int)) for value in known):
        return a is b
    pairs = zip(known, (a, b), strict=True)
    # In the trace, which has gradients off, only inputs require one.
    traced = [getattr(v, "requires_grad", False) and n.op == "placeholder" for v, n in pairs]
    return traced[0] == traced[1] and bool(describe(known[0]) == describe(known[1]))


def _is_of_transform(value: Any) -> bool:
    """Whether this is a tensor of a functional transform, such as `vmap`: it has no storage."""
    return isinstance(value, Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(value)


def _are_apart(results: Sequence[fx.Node], outside: set[Key]) -> bool:
    seen = set(outside)
    if None in seen:
        return False
    for node in results:
        value = node.meta.get("example_value")
        if isinstance(value, (torch.SymInt, int)):
            continue
        storage = _storage(node) if isinstance(value, Tensor) else None
        if storage is None or storage in seen:
            return False
        seen.add(storage)
    return True


def _storage(node: fx.Node) -> Key:
    """Equal for tensors that share memory, 0 for other values; None for a tensor that has none, as a sparse one."""
    value = node.meta.get("example_value")
    if not isinstance(value, Tensor):
        return 0
    known = node.meta.get(STORAGE)
    if known is not None:
        return known
    return int(value.untyped_storage()._cdata) if torch._C._has_storage(value) else None


def _size(node: fx.Node) -> int:
    """Calls, with those in the body that a `get_attr` node reads."""
    value = attribute_of(node) if node.op == "get_attr" else None
    if not isinstance(value, fx.GraphModule):
        return _CELLS.get(node.target, 1) if node.op != "get_attr" else 0
    return sum(map(_size, calls_of(value.graph)))


# ---- what a call is ------------------------------------------------------------------------------


def _call_key(node: fx.Node) -> Key:
    """Equal for calls that do the same on equally described values, whichever values these are."""
    if node.op == "get_attr":
        return _attribute_key(node)
    if isinstance(node.target, torch._ops.HigherOrderOperator) and "hook" in node.target.name():
        return id(node)  # what it does depends on the other users of its operand
    if "as_strided" in str(node.target) or _is_of_transform(node.meta.get("example_value")):
        return id(node)
    arguments = _argument_key((node.args, node.kwargs), lambda _: "value")
    return node.op, node.target, arguments, describe(node.meta.get("example_value"))


def _form_key(node: fx.Node, key: Key) -> Key:
    """The key of a call without the index of the element that it takes."""
    if element_of(node) is None:
        return key
    parts = ("element" if type(part) is int else repr(part) for part in _index_of(node))
    return node.op, node.target, tuple(parts), describe(node.meta.get("example_value"))


def _attribute_key(node: fx.Node) -> Key:
    """Bodies of higher-order operators are equal if their calls are; other attributes if they are the same."""
    value = attribute_of(node)
    if not isinstance(value, fx.GraphModule):
        return "attribute", id(value)
    places = {inner: i for i, inner in enumerate(value.graph.nodes)}
    keys = []
    for inner in value.graph.nodes:
        if inner.op in ("placeholder", "output"):
            key: Key = (inner.op, describe(inner.meta.get("example_value")))
        else:
            key = _call_key(inner)
        keys.append((key, _argument_key((inner.args, inner.kwargs), places.__getitem__)))
    return "body", tuple(keys)


def _argument_key(value: Any, of_node: Callable[[fx.Node], Key]) -> Key:
    if isinstance(value, fx.Node):
        return of_node(value)
    if isinstance(value, (list, tuple)):
        return type(value), tuple(_argument_key(item, of_node) for item in value)
    if isinstance(value, dict):
        return tuple((name, _argument_key(item, of_node)) for name, item in value.items())
    if isinstance(value, slice):
        parts = (value.start, value.stop, value.step)
        return slice, tuple(_argument_key(part, of_node) for part in parts)
    if isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format)):
        return value
    return describe(value)
