"""The strides that results have in eager PyTorch, where fake tensors say others.

Mostly the order of dimensions of size 1: no element tells it, but `Tensor.stride()`, memory formats
chosen by later operators and the order in which torch's generator draws do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import (
    is_non_overlapping_and_dense_or_false,
    suggest_memory_format,
)
from torch.utils import _pytree as pytree

_BATCH_NORMS = (
    torch.ops.aten.native_batch_norm,
    torch.ops.aten._native_batch_norm_legit,
    torch.ops.aten._native_batch_norm_legit_functional,
    torch.ops.aten._native_batch_norm_legit_no_training,
)


def _batch_norm_format(operand: Tensor) -> torch.memory_format:
    """Row-major or channels-last, whatever the operand's order of dimensions. Where dimensions of
    size 1 leave the choice, ATen's kernel (batch_norm_cpu) asks for contiguity first."""
    if operand.is_contiguous():
        return torch.contiguous_format
    if operand.dim() == 4 and operand.is_contiguous(memory_format=torch.channels_last):
        return torch.channels_last
    if operand.dim() == 5 and operand.is_contiguous(memory_format=torch.channels_last_3d):
        return torch.channels_last_3d
    return suggest_memory_format(operand)


def _equal(numbers: Sequence[Any], others: Sequence[Any]) -> bool:
    """As texts, since comparing symbols would add guards."""
    return [*map(str, numbers)] == [*map(str, others)]


def _has_size_1(value: Tensor) -> bool:
    return any(isinstance(size, int) and size == 1 for size in value.shape)


def is_expanded(value: Tensor) -> bool:
    """Whether several indices may lead to one element."""
    sizes = zip(value.shape, value.stride(), strict=True)
    return any(str(stride) == "0" and str(size) != "1" for size, stride in sizes)


def is_row_major(value: Any) -> bool:
    """Whether a tensor is row-major, and everything else; compared as texts as in `_equal`."""
    expected: Any = 1
    if isinstance(value, Tensor):
        for size, stride in zip(reversed(value.shape), reversed(value.stride()), strict=True):
            if str(stride) != str(expected):
                return False
            expected = expected * size
    return True


def _with_strides_of_operands(result: Any, operands: Any) -> Any:
    """ATen's TensorIterator gives the strides of operands that are dense and alike, those of
    dimensions of size 1 included, where torch's references make these anew."""
    if not isinstance(result, Tensor) or not _has_size_1(result):
        return result
    tensors = [x for x in pytree.tree_leaves(operands) if isinstance(x, Tensor) and x.dim() > 0]
    if not tensors:
        return result
    strides = tensors[0].stride()
    if any(not _equal(x.shape, result.shape) or not _equal(x.stride(), strides) for x in tensors):
        return result
    sizes = zip(result.shape, strides, result.stride(), strict=True)
    differ = [size for size, wanted, made in sizes if not _equal([wanted], [made])]
    if not differ or any(not _equal([size], [1]) for size in differ):
        return result
    if not is_non_overlapping_and_dense_or_false(tensors[0]):
        return result
    return torch.empty_strided(result.shape, strides, dtype=result.dtype, device=result.device)


def _with_strides_of_index(result: Tensor, x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    """x[indices], whose dimensions ATen's TensorIterator (reorder_dimensions) orders by the strides
    of x and then of each index, where torch's reference looks at those of x alone."""
    integers = all(index is None or index.dtype in (torch.int64, torch.int32) for index in indices)
    known = (*result.shape, *x.shape, *x.stride())
    if not integers or not all(isinstance(number, int) for number in known):
        return result
    given = [d for d, index in enumerate(indices) if index is not None]
    together = given == list(range(given[0], given[-1] + 1))
    rest = [d for d in range(x.dim()) if d not in given]
    before = rest[: given[0]] if together else []  # else the indexed dimensions come first
    index_dims = result.dim() - len(rest)
    shape = list(result.shape)

    def reshaped(index: Tensor) -> list[int]:
        sizes = [1] * len(before) + list(index.shape) + [1] * (len(rest) - len(before))
        strides = index.reshape(sizes).stride()
        return [
            0 if size == 1 and of != 1 else stride
            for size, of, stride in zip(sizes, shape, strides, strict=True)
        ]

    strides_of_x = [x.stride(d) for d in rest]
    strides_of_x[len(before) : len(before)] = [0] * index_dims
    chosen = torch.broadcast_tensors(*(indices[d] for d in given))
    order = _physical_order(shape, [strides_of_x, *map(reshaped, chosen)])
    return torch.empty_permuted(shape, order, dtype=result.dtype, device=result.device)


def _physical_order(sizes: Sequence[int], strides: Sequence[Sequence[int]]) -> list[int]:
    """The dimensions of a result of TensorIterator, outermost first, by its operands' strides."""

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


def _is_roll_of_two_parts(x: Tensor, _shifts: Any, dims: Sequence[int] = ()) -> bool:
    return len(dims) == 1 and x.device.type == "cpu" and not is_row_major(x)


def with_eager_strides(func: Any, args: Sequence[Any], kwargs: Any, result: Any) -> Any:
    """Corrects operators whose fake results have other strides than their results in eager."""
    if func is torch.ops.aten.pow.Scalar:
        return result.contiguous()
    if func is torch.ops.aten.log_sigmoid_forward.default:
        return tuple(x.contiguous() for x in result)
    if func is torch.ops.aten.roll.default and _is_roll_of_two_parts(*args):
        # On the CPU it is made of two parts, and so of their memory format.
        operand, dim = args[0], args[2][0]
        rest = operand.narrow(dim, 1, operand.shape[dim] - 1)
        return torch.cat([operand.narrow(dim, 0, 1), rest], dim)
    if func is torch.ops.aten.index.Tensor:
        return _with_strides_of_index(result, *args)
    if torch.Tag.pointwise in func.tags and not func._schema.is_mutable:
        return _with_strides_of_operands(result, (args, kwargs))
    if func.overloadpacket in _BATCH_NORMS and not is_row_major(args[0]):
        # Made anew: `contiguous` would leave the strides of dimensions of size 1 as they are.
        fitting = torch.empty_like(result[0], memory_format=_batch_norm_format(args[0]))
        return (fitting, *result[1:])
    return result
