"""The strides that results have in eager PyTorch, where fake tensors have others.

Those of dimensions of size 1 stay as fake tensors have them: no element lies elsewhere for it.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import compute_elementwise_output_strides, suggest_memory_format

from ortmodule_py.base.changing_numbers import is_same

aten = torch.ops.aten


def is_expanded(value: Tensor) -> bool:
    """Whether several indices may lead to one element."""
    sizes = zip(value.shape, value.stride(), strict=True)
    return any(is_same(stride, 0) and not is_same(size, 1) for size, stride in sizes)


def is_row_major(value: Any) -> bool:
    """Whether a tensor is row-major, and everything else."""
    return not isinstance(value, Tensor) or _is_dense(value, range(value.dim() - 1, -1, -1))


def _is_dense(value: Tensor, dims: Iterable[int]) -> bool:
    """Whether each of the dimensions lies densely in the one after it. Expressions are compared, since
    comparing symbols would add guards."""
    expected: Any = 1
    last = -1
    for dim in dims:
        if last >= 0:
            expected = expected * value.shape[last]
        if not is_same(value.stride(dim), expected):
            return False
        last = dim
    return True


def _is_volumes_last(value: Any) -> bool:
    """Whether volumes lie channels-last."""
    return isinstance(value, Tensor) and value.dim() == 5 and _is_dense(value, (1, 4, 3, 2, 0))


def _convolved(result: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Volumes of which a size is a symbol are row-major in fake tensors, channels-last in libraries."""
    if not (_is_volumes_last(x) or _is_volumes_last(weight)) or not _is_a_librarys(x):
        return result
    return result.contiguous(memory_format=torch.channels_last_3d)


def _is_a_librarys(x: Tensor) -> bool:
    """Whether a library convolves tensors of this type, not ATen itself."""
    if x.device.type != "cpu":
        return True
    supported = {
        torch.float32: torch.backends.mkldnn.is_available,
        torch.bfloat16: torch.ops.mkldnn._is_mkldnn_bf16_supported,
        torch.float16: torch.ops.mkldnn._is_mkldnn_fp16_supported,
    }.get(x.dtype)
    return supported is not None and bool(supported())


def _restrided(result: Tensor, strides: Sequence[Any]) -> Tensor:
    if all(map(is_same, strides, result.stride())):
        return result
    return torch.empty_strided(result.shape, strides, dtype=result.dtype, device=result.device)


def _like_sum(result: Tensor, operands: Sequence[Any]) -> Tensor:
    """Addition lays its result out as ATen's other pointwise operators do, in fake tensors too."""
    tensors = [x for x in operands if isinstance(x, Tensor) and x.dim() > 0]
    return _restrided(result, operator.add(*[*tensors, 0][:2]).stride()) if tensors else result


def _rolled(result: Tensor, x: Tensor, _shifts: Any, dims: Sequence[int] = ()) -> Tensor:
    """On the CPU a roll along one dimension is made of two parts, in their memory format."""
    if len(dims) != 1 or x.device.type != "cpu":
        return result
    rest = x.narrow(dims[0], 1, x.shape[dims[0]] - 1)
    return torch.cat([x.narrow(dims[0], 0, 1), rest], dims[0])


def _batch_norm_format(x: Tensor) -> torch.memory_format:
    """Row-major or channels-last, whatever the order of dimensions (`batch_norm_cpu` in ATen)."""
    channels_last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
    if x.is_contiguous():
        return torch.contiguous_format
    if channels_last is not None and x.is_contiguous(memory_format=channels_last):
        return channels_last
    return suggest_memory_format(x)


def _like_iterator(result: Tensor, operands: Sequence[Any]) -> Tensor:
    """A leading dimension that an operand lacks has stride 0 in ATen's TensorIterator, not so in torch's
    formula for fake tensors, which expands the operands first."""
    tensors = [x for x in operands if isinstance(x, Tensor) and x.dim() > 0]
    ranks = {x.dim() for x in tensors}
    if len(ranks) < 2 or max(ranks) != result.dim():
        return result
    common = functools.reduce(torch.promote_types, (x.dtype for x in tensors))
    iterated = []
    for x in tensors:
        # There the iterator casts operands first, but for the condition of `where`.
        if x.dtype not in (common, torch.bool) and x.device.type == "cpu":
            x = torch.empty_like(x, dtype=common)
        missing = [0] * (result.dim() - x.dim())
        sizes = zip((*missing, *x.shape), (*missing, *x.stride()), result.shape, strict=True)
        strides = [stride if is_same(size, whole) else 0 for size, stride, whole in sizes]
        iterated.append(x.as_strided(result.shape, strides))
    return _restrided(result, compute_elementwise_output_strides(*iterated))


def with_strides_kept(operand: Tensor, result: Any) -> Any:
    """What an operator that works in place gives, of which a trace knows the one that does not."""
    if not isinstance(result, Tensor) or not isinstance(operand, Tensor):
        return result
    return _restrided(result, torch.empty_like(operand).stride())


def _row_major(result: Any, _: Sequence[Any]) -> Any:
    return (
        result.contiguous()
        if isinstance(result, Tensor)
        else tuple(part.contiguous() for part in result)
    )


def _batch_norm(result: Any, args: Sequence[Any]) -> Any:
    kept = _batch_norm_format(args[0])
    return (torch.empty_like(result[0], memory_format=kept), *result[1:])


_CORRECTIONS: dict[Any, Callable[[Any, Sequence[Any]], Any]] = {
    aten.pow.Scalar: _row_major,
    aten.log_sigmoid_forward.default: _row_major,
    # Pointwise operators whose fake results are row-major, where ATen's TensorIterator follows the operands.
    **dict.fromkeys(
        (aten.copysign, aten.logical_and, aten.logical_or, aten.logical_xor, aten.xlogy), _like_sum
    ),
    # ATen takes the gradient for the second operand.
    aten.threshold_backward.default: lambda result, args: _like_sum(result, (args[1], args[0])),
    aten.roll.default: lambda result, args: _rolled(result, *args),
    **dict.fromkeys(
        (
            aten.native_batch_norm,
            aten._native_batch_norm_legit,
            aten._native_batch_norm_legit_functional,
            aten._native_batch_norm_legit_no_training,
        ),
        _batch_norm,
    ),
    aten.convolution.default: lambda result, args: _convolved(result, *args[:2]),
    aten.conv3d.default: lambda result, args: _convolved(result, *args[:2]),
    aten.max_unpool2d.default: lambda result, args: result.contiguous(
        memory_format=suggest_memory_format(args[0])
    ),
    # It has no tag; ATen subtracts the other way round.
    aten.rsub.Tensor: lambda result, args: _like_iterator(result, (args[1], args[0])),
    # It works on a clone of its operand.
    aten.masked_fill: lambda result, _: result,
}
"""By operator, or its overload: the strides that its results have in eager."""


def with_eager_strides(func: Any, args: Sequence[Any], result: Any) -> Any:
    """Corrects operators whose fake results have other strides than their results in eager."""
    correct = _CORRECTIONS.get(func) or _CORRECTIONS.get(func.overloadpacket)
    if correct is None and torch.Tag.pointwise in func.tags and isinstance(result, Tensor):
        correct = _like_iterator
    if correct is None or not args or all(map(is_row_major, args)):
        return result
    return correct(result, args)
