"""The strides that ATen's TensorIterator gives to results of pointwise operators.

After aten/src/ATen/TensorIterator.cpp (compute_fast_setup_type, reorder_dimensions and
allocate_or_resize_outputs) of PyTorch 2.x. Torch's references, which fake tensors use, follow the
same rules but for dimensions of size 1, whose strides they make anew.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


class UnhintedError(Exception):
    """A size that depends on data: it cannot be compared."""


def hint(number: int | torch.SymInt) -> int:
    """A symbolic size is compared by the value it was traced with, which adds no guard: the order
    of dimensions does not depend on it, as sizes 0 and 1 are not symbolic."""
    if isinstance(number, int):
        return number
    if not number.node.has_hint():
        raise UnhintedError
    return int(number.node.hint)


class Layout(NamedTuple):
    """Sizes and strides as numbers."""

    sizes: list[int]
    strides: list[int]

    @staticmethod
    def of(x: Tensor) -> Layout:
        return Layout([*map(hint, x.shape)], [*map(hint, x.stride())])

    def is_in_order(self, order: Sequence[int]) -> bool:
        """Whether the elements lie side by side in this order of dimensions, outermost first; the
        strides of dimensions of size 1 do not matter."""
        wanted = strides_in_order(self.sizes, order)
        numbers = zip(self.sizes, self.strides, wanted, strict=True)
        return all(size == 1 or stride == want for size, stride, want in numbers)

    def is_dense(self) -> bool:
        dims = range(len(self.sizes))
        return self.is_in_order(sorted(dims, key=lambda d: -self.strides[d]))

    def broadcast(self, sizes: Sequence[int]) -> list[int]:
        """Strides over the dimensions of the result, 0 where this operand is broadcast."""
        missing = len(sizes) - len(self.sizes)
        own = zip(self.sizes, self.strides, sizes[missing:], strict=True)
        return [0] * missing + [0 if size == 1 and of != 1 else stride for size, stride, of in own]


def strides_in_order(sizes: Sequence[Any], order: Sequence[int]) -> list[Any]:
    """Dense strides of dimensions in this order, outermost first."""
    strides: list[Any] = [0] * len(sizes)
    step: Any = 1
    for d in reversed(order):
        strides[d] = step
        step = step * sizes[d]
    return strides


def physical_order(sizes: Sequence[int], strides: Sequence[Sequence[int]]) -> list[int]:
    """The dimensions of a result, outermost first, by its operands' strides (0 where an operand is
    broadcast)."""

    def comes_later(a: int, b: int) -> int:
        for operand in strides:
            if operand[a] == 0 or operand[b] == 0:
                continue
            if operand[a] != operand[b]:
                return 1 if operand[a] > operand[b] else -1
            if sizes[a] > sizes[b]:
                return 1
        return 0

    order = list(range(len(sizes)))[::-1]  # innermost first
    for i in range(1, len(order)):  # an insertion sort, as pairs may be left undecided
        moved = i
        for j in range(i - 1, -1, -1):
            compared = comes_later(order[j], order[moved])
            if compared < 0:
                break
            if compared > 0:
                order[j], order[moved] = order[moved], order[j]
                moved = j
    return order[::-1]


def dense_strides(x: Tensor) -> list[Any] | None:
    """Those of `x` if it is dense: what a new tensor in its memory format (torch.preserve_format)
    has, too."""
    try:
        return list(x.stride()) if Layout.of(x).is_dense() else None
    except UnhintedError:
        return None


def preserved_strides(x: Tensor) -> list[Any]:
    """Those of a new tensor in the memory format of `x`."""
    return dense_strides(x) or list(torch.empty_like(x).stride())


def _strides_of_alike(
    shape: Sequence[Any], tensors: Sequence[Tensor], layouts: Sequence[Layout]
) -> list[Any] | None:
    """Those of operands of one shape that are laid out alike, for which nothing is sorted."""
    orders = [tuple(range(len(shape)))]
    if len(shape) == 4:
        orders.append((0, 2, 3, 1))
    for order in orders:
        if all(x.is_in_order(order) for x in layouts):
            return strides_in_order(shape, order)
    first = layouts[0]
    alike = all(x.strides == first.strides and x.is_dense() for x in layouts)
    return list(tensors[0].stride()) if alike else None


_REVERSED = (  # ATen hands them to the iterator the other way round
    torch.ops.aten.threshold_backward,
    torch.ops.aten.rsub,
)
_LIKE_THE_OPERAND = (torch.ops.aten.nan_to_num, torch.ops.aten.hardtanh)
_OPERAND_NAMES_OF_NUMBERS = ("other", "self")


def _has_number_operands(func: Any, args: Sequence[Any], kwargs: Any) -> bool:
    """Whether ATen makes tensors of rank 0 of Python numbers among the operands: those given for
    tensors, and the second of a binary operator."""
    for i, argument in enumerate(func._schema.arguments):
        value = args[i] if i < len(args) else kwargs.get(argument.name)
        if not isinstance(value, int | float | complex | torch.SymInt | torch.SymFloat):
            continue
        if (
            isinstance(argument.type, torch.TensorType)
            or argument.name in _OPERAND_NAMES_OF_NUMBERS
        ):
            return True
    return False


def _in_one_dtype(tensors: Sequence[Tensor], result: Tensor) -> list[Tensor]:
    """Operands of another dtype are converted before the iterator looks at them, and become dense."""
    common = functools.reduce(torch.promote_types, [x.dtype for x in tensors])
    if result.dtype.is_floating_point and not common.is_floating_point:
        common = result.dtype
    return [
        x
        if x.dtype == common
        else torch.empty_strided(x.shape, preserved_strides(x), device="meta")
        for x in tensors
    ]


def result_strides(func: Any, args: Sequence[Any], kwargs: Any, result: Tensor) -> list[Any] | None:
    """The strides of the result of a pointwise ATen operator. None where there are no elements, no
    tensor with dimensions, or a size that depends on data."""
    shape = list(result.shape)
    every = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    tensors = [x for x in every if x.dim() > 0]
    if not tensors:
        return None
    if func.overloadpacket is torch.ops.aten.masked_fill:  # a row-major copy, filled in place
        return strides_in_order(shape, range(len(shape)))
    if func.overloadpacket in _LIKE_THE_OPERAND:
        return preserved_strides(tensors[0])
    if func.overloadpacket in _REVERSED:
        tensors.reverse()
    condition = tensors[:1] if func.overloadpacket is torch.ops.aten.where else []
    tensors = condition + _in_one_dtype(tensors[len(condition) :] or tensors, result)
    try:
        sizes, layouts = [*map(hint, shape)], [*map(Layout.of, tensors)]
    except UnhintedError:
        return None
    if 0 in sizes:
        return None
    alone = len(every) == len(tensors) and not _has_number_operands(func, args, kwargs)
    if alone and all(x.sizes == sizes for x in layouts):
        alike = _strides_of_alike(shape, tensors, layouts)
        if alike is not None:
            return alike
    return strides_in_order(shape, physical_order(sizes, [x.broadcast(sizes) for x in layouts]))
