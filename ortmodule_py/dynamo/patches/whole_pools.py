"""Captures pools whose window is a whole dimension, as `F.max_pool1d(x, x.size(2))`, once for all sizes.

Torch takes windows as C++ ints, which a capture makes constants. Such a pool is a maximum or a mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch._dynamo.variables import ConstantVariable, SymNodeVariable, UserFunctionVariable
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.lists import BaseListVariable
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.nn import functional

from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import patch

Number: TypeAlias = "int | torch.SymInt"

_OF_MAXIMUM = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
_OF_MEAN = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad")
_ARGUMENTS = {
    **dict.fromkeys((functional.max_pool1d, torch.max_pool1d), (1, _OF_MAXIMUM)),
    **dict.fromkeys((functional.max_pool2d, torch.max_pool2d), (2, _OF_MAXIMUM)),
    **dict.fromkeys((functional.max_pool3d, torch.max_pool3d), (3, _OF_MAXIMUM)),
    functional.avg_pool1d: (1, _OF_MEAN),
    functional.avg_pool2d: (2, (*_OF_MEAN, "divisor_override")),
    functional.avg_pool3d: (3, (*_OF_MEAN, "divisor_override")),
}
"""Number of dimensions and arguments behind the operand, by function."""
_WITHOUT_MEANING = {"padding": 0, "dilation": 1, "return_indices": False, "divisor_override": None}
"""Values with which a pool is a maximum or a mean of its window."""


def _maximum(x: Tensor, dims: Sequence[int]) -> Tensor:
    # The last dimension first: of equal elements the first one in memory has the gradient, as in a pool.
    for dim in reversed(dims):
        x = x.max(dim, keepdim=True).values
    return x


def _mean(x: Tensor, dims: Sequence[int]) -> Tensor:
    return x.mean(dims, keepdim=True)


def _probe(trial: Trial) -> bool:
    def pooled(x: Tensor) -> Tensor:
        y = functional.avg_pool2d(x.reshape(1, 1, 2, -1), (2, x.size(0) // 2))
        return functional.max_pool1d(x.reshape(1, 1, -1), x.size(0)) + y

    given = ((torch.arange(n, dtype=torch.float32),) for n in (6, 8, 10, 14))
    return trial(lambda: pooled, *given) and trial.captures <= 2


@patch(
    "pools of whole dimensions",
    "A pool whose window is a whole dimension needs no new capture for other sizes.",
    {(2, 13): "torch._dynamo.variables.torch:TorchInGraphFunctionVariable.call_function"},
    probe=_probe,
    needed_by=None,
)
def _call(call: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    known = _ARGUMENTS.get(self.value) if callable(self.value) else None
    if known is None:
        return call(self, tx, args, kwargs)
    count, names = known
    given = dict(zip(("input", *names), args, strict=False)) | kwargs
    x = given.pop("input").realize()
    kernel = _numbers(given["kernel_size"], count) if "kernel_size" in given else None
    if kernel is None or not x.is_tensor() or not set(given) <= set(names):
        return call(self, tx, args, kwargs)
    sizes = x.as_proxy().node.meta["example_value"].shape[-count:]
    whole = [
        statically_known_true(size == _value(window))
        for size, window in zip(sizes, kernel, strict=True)
    ]
    if not _is_reduction(given, kernel, whole):
        return call(self, tx, args, kwargs)
    dims = [ConstantVariable.create(i - count) for i in range(count) if whole[i]]
    reduce = _mean if names is not _OF_MAXIMUM else _maximum
    packed = torch._dynamo.variables.TupleVariable(dims)
    return UserFunctionVariable(reduce).call_function(tx, [x, packed], {})


def _numbers(value: Any, count: int) -> list[VariableTracker] | None:
    """A number for each dimension; None for other values."""
    value = value.realize()
    items = value.items if isinstance(value, BaseListVariable) else [value]
    numbers = [item.realize() for item in items]
    if len(numbers) == 1:
        numbers *= count
    known = all(isinstance(n, SymNodeVariable) or n.is_python_constant() for n in numbers)
    return numbers if known and len(numbers) == count else None


def _value(number: VariableTracker) -> Number:
    value: Number = (
        number.sym_num if isinstance(number, SymNodeVariable) else number.as_python_constant()
    )
    return value


def _is_reduction(
    given: dict[str, Any], kernel: Sequence[VariableTracker], whole: Sequence[bool]
) -> bool:
    """Whether a window that changes is a whole dimension, and the others are single elements."""
    changes = [isinstance(window, SymNodeVariable) for window in kernel]
    if not any(changes) or len(whole) != len(kernel):
        return False
    stride = given.get("stride")
    if stride is not None and not stride.is_constant_match(None):
        strides = _numbers(stride, len(kernel))
    else:
        strides = list(kernel)
    if strides is None:
        return False
    for window, step, is_whole in zip(kernel, strides, whole, strict=True):
        if not is_whole and not (window.is_constant_match(1) and step.is_constant_match(1)):
            return False
    return all(
        _is_neutral(given[name], value) for name, value in _WITHOUT_MEANING.items() if name in given
    )


def _is_neutral(given: Any, value: Any) -> bool:
    given = given.realize()
    items = given.items if isinstance(given, BaseListVariable) else [given]
    return all(item.is_constant_match(value) for item in items)
