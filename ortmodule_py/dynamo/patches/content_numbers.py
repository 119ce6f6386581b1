"""Captures masks and numbers that follow from an integer tensor among the arguments of the graph.

Dynamo breaks the graph where the size of a result or a number is data: the edges of a graph that a mask
leaves, or the greatest index. Here each call computes them before the graph runs (`content_sizes`).
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.variables import (
    ConstantVariable,
    ListVariable,
    TupleVariable,
    UserFunctionVariable,
)
from torch._dynamo.variables.base import VariableTracker
from torch._guards import CompileContext

from ortmodule_py.dynamo.content_sizes import (
    constant_of_sizes,
    constant_tensor,
    follows_from_arguments,
    read_size,
)
from ortmodule_py.dynamo.graph_breaks import user_line
from ortmodule_py.dynamo.patches.conditions import decide
from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import capturing_compiler, patch

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_LONGEST = 32
"""Numbers of a list that is read: each of them is an argument of the graph."""
_CAPTURES = 4
"""Captures of a line that reads a number before the graph breaks there: its values decide what is captured."""


def _is_captured(trial: Trial, function: Callable[..., Any], *width: int) -> bool:
    """Whether integers of other values are no captures of their own, but for those of another outcome."""
    given = [torch.tensor(numbers) for numbers in ([0, 1, 2, 3], [0, 0, 1, 1], [1, 0, 2, 5])]
    same = trial(lambda: function, *((torch.ones(4, *width), index) for index in given))
    return same and trial.captures <= 2 and not trial.graph_breaks


# ---- masks ---------------------------------------------------------------------------------------


def _probe_mask(trial: Trial) -> bool:
    def kept(x: Tensor, index: Tensor) -> Tensor:
        return x[index > 0] * 2

    return _is_captured(trial, kept, 2)


@patch(
    "masks",
    "An index by a mask of integers that are given is captured, once for all numbers of elements.",
    {(2, 13): "torch._dynamo.variables.builtin:BuiltinVariable._handle_insert_op_in_graph"},
    probe=_probe_mask,
    needed_by=None,
)
def _select(insert: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    selected = _selected(tx, *args) if self.fn is operator.getitem else None
    return insert(self, tx, args, kwargs) if selected is None else selected


def _selected(tx: Any, tensor: Any, key: Any) -> VariableTracker | None:
    """The result of an index by slices of whole dimensions and one mask; None for other indices."""
    before, mask = _whole_dims_and_mask(key)
    if mask is None or not tensor.is_tensor():
        return None
    x, chosen = (_fake(value) for value in (tensor, mask))
    behind = before + chosen.dim()
    if chosen.dtype is not torch.bool or chosen.dim() == 0 or x.device.type != "cpu":
        return None
    if x.dim() < behind or tuple(x.shape[before:behind]) != tuple(chosen.shape):
        return None
    if chosen.dim() > 1 and not x.is_contiguous():
        return None
    count = read_size(tx, mask, _count)
    if count is None:
        return None
    args = [tensor, mask, count, ConstantVariable.create(before)]
    return UserFunctionVariable(_by_position).call_function(tx, args, {})


def _whole_dims_and_mask(key: Any) -> tuple[int, Any]:
    """How many dimensions lie in front of the mask, and the mask."""
    items = key.items if isinstance(key, TupleVariable) else [key]
    items = [item.realize() for item in items]
    *whole, last = items
    if not last.is_tensor() or not all(map(_is_whole, whole)):
        return 0, None
    return len(whole), last


def _is_whole(item: VariableTracker) -> bool:
    return item.is_python_constant() and item.as_python_constant() == slice(None)


def _by_position(x: Tensor, mask: Tensor, count: int, dim: int) -> Tensor:
    positions = torch.nonzero_static(mask.flatten(), size=count).view(-1)
    if mask.dim() > 1:
        x = x.flatten(dim, dim + mask.dim() - 1)
    return x[positions] if dim == 0 else x[(slice(None),) * dim + (positions,)]


def _count(mask: Tensor) -> int:
    return int(mask.count_nonzero())


def _probe_selection(trial: Trial) -> bool:
    def kept(x: Tensor, index: Tensor) -> Tensor:
        return x.masked_select(index > 0) * 2

    return _is_captured(trial, kept)


@patch(
    "masked_select",
    "`masked_select` with a mask of integers that are given is captured.",
    {(2, 13): "torch._dynamo.variables.tensor:TensorVariable.call_method"},
    probe=_probe_selection,
    needed_by=None,
)
def _call(call: Callable[..., Any], self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
    selected = None
    if name == "masked_select" and len(args) == 1 and args[0].realize().is_tensor() and not kwargs:
        same = tuple(_fake(self).shape) == tuple(_fake(args[0]).shape)
        selected = _selected(tx, self, args[0]) if same else None
    return call(self, tx, name, args, kwargs) if selected is None else selected


# ---- numbers -------------------------------------------------------------------------------------


def _probe_number(trial: Trial) -> bool:
    def sums(x: Tensor, index: Tensor) -> Tensor:
        return x.new_zeros(int(index.max()) + 1).index_add(0, index, x)

    return _is_captured(trial, sums)


@patch(
    "numbers read from arguments",
    "Numbers that are read from integers that are given are captured, once for all numbers.",
    {(2, 13): "torch._dynamo.variables.tensor:TensorVariable.call_method"},
    probe=_probe_number,
    needed_by=None,
)
def _item(call: Callable[..., Any], self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
    number = None
    if name in ("item", "tolist") and not args and not kwargs:
        number = _numbers(tx, self) if name == "tolist" else number_of(tx, self)
    return call(self, tx, name, args, kwargs) if number is None else number


def _numbers(tx: Any, tensor: Any) -> VariableTracker | None:
    """`tensor.tolist()` without a graph break; None for long lists, and where `number_of` is None."""
    constant = constant_tensor(tensor)
    if constant is not None:
        return VariableTracker.build(tx, constant.tolist())
    fake = _fake(tensor)
    if fake.dim() == 0:
        return number_of(tx, tensor)
    if fake.dtype not in _INTEGERS or math.prod(map(_now, fake.shape)) > _LONGEST:
        return None
    captures = _captures()
    if captures is None or not follows_from_arguments(tensor):
        return None
    shape = [int(size) for size in fake.shape]  # the list has one length in a capture
    constant = constant_of_sizes(tensor)
    if constant is not None:
        captures.add(str(CompileContext.current_compile_id()))
        return VariableTracker.build(tx, constant.tolist())
    numbers = [_read(tx, tensor, _element(i)) for i in range(math.prod(shape))]
    return None if None in numbers else _nested(numbers, shape)


def _now(size: Any) -> int:
    """A size at this capture, without a guard."""
    return int(size.node.hint) if isinstance(size, torch.SymInt) else int(size)


@functools.cache
def _element(position: int) -> Callable[[Tensor], int]:
    def read(tensor: Tensor) -> int:
        return int(tensor.flatten()[position])

    return read


def _nested(numbers: list[Any], shape: list[int]) -> VariableTracker:
    if len(shape) == 1:
        return ListVariable(numbers)
    step = math.prod(shape[1:])
    rows = [numbers[i * step : (i + 1) * step] for i in range(shape[0])]
    return ListVariable([_nested(row, shape[1:]) for row in rows])


def number_of(tx: Any, tensor: Any) -> VariableTracker | None:
    """`tensor.item()` without a graph break; None if it follows neither from constants nor from an argument."""
    fake = _fake(tensor)
    constant = constant_tensor(tensor)
    if constant is not None and constant.numel() == 1:
        return VariableTracker.build(tx, constant.item())
    if fake.numel() != 1:
        return None
    if fake.dtype is torch.bool:
        outcome = _outcome(tx, tensor)
        return None if outcome is None else ConstantVariable.create(outcome)
    return _read(tx, tensor, int) if fake.dtype in _INTEGERS else None


def _read(tx: Any, tensor: Any, read: Callable[[Tensor], int]) -> VariableTracker | None:
    """What `read` finds in the tensor; None if it does not follow from an argument, or changes too often."""
    captures = _captures()
    number = None if captures is None else read_size(tx, tensor, read)
    if captures is not None and number is not None:
        captures.add(str(CompileContext.current_compile_id()))
    return number


def _captures() -> set[str] | None:
    """The captures in which this line has read a number; None if there are too many."""
    compiler: Any = capturing_compiler()
    captures: set[str] = compiler.log.number_reads[user_line()]
    current = str(CompileContext.current_compile_id())
    return captures if current in captures or len(captures) < _CAPTURES else None


# ---- conditions ----------------------------------------------------------------------------------


def _probe_condition(trial: Trial) -> bool:
    def scaled(x: Tensor, index: Tensor) -> Tensor:
        return x * 2 if index.max() > 2 else x * 3

    return _is_captured(trial, scaled)


@patch(
    "conditions on arguments",
    "A condition on integers that are given is captured, once for each outcome.",
    {(2, 13): "torch._dynamo.symbolic_convert:InstructionTranslatorBase.step"},
    probe=_probe_condition,
    needed_by=None,
)
def _step(step: Callable[..., Any], self: Any) -> Any:
    decide(self, lambda value: _outcome(self, value))
    return step(self)


def _outcome(tx: Any, tensor: Any) -> bool | None:
    """The outcome of a condition on one element, with a guard on it; None if it cannot be known."""
    fake = _fake(tensor)
    if fake.numel() != 1 or fake.is_complex():
        return None
    constant = constant_tensor(tensor)
    if constant is not None:
        return bool(constant)
    found: Any = _read(tx, tensor, _is_true)
    return None if found is None else bool(found.sym_num != 0)


def _is_true(tensor: Tensor) -> int:
    return int(bool(tensor))


def _fake(value: VariableTracker) -> Any:
    return value.as_proxy().node.meta["example_value"]
