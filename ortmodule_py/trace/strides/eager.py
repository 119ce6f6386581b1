"""The strides that results have in eager PyTorch, where fake tensors say others.

Mostly the order of dimensions of size 1: no element tells it, but `Tensor.stride()`, memory formats
chosen by later operators and the order in which torch's generator draws do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

from ortmodule_py.trace.strides.tensor_iterator import (
    Layout,
    UnhintedError,
    dense_strides,
    hint,
    physical_order,
    preserved_strides,
    result_strides,
    strides_in_order,
)
from ortmodule_py.trace.strides.views import view_strides

_GROUP_BY_GROUP = (torch._C._ConvBackend.Slow2d, torch._C._ConvBackend.SlowDilated2d)
_INDEX_TYPES = (torch.int64, torch.int32)
_ROW_MAJOR = (
    torch.ops.aten._log_softmax,
    torch.ops.aten.native_layer_norm,
    torch.ops.aten.tril,
    torch.ops.aten.triu,
)
_LIKE_THE_OPERAND = (torch.ops.aten.flip, torch.ops.aten.sort)
_NEW_LIKE_THE_OPERAND = (
    torch.ops.aten._to_copy,
    torch.ops.aten.clone,
    torch.ops.aten.empty_like,
    torch.ops.aten.full_like,
    torch.ops.aten.ones_like,
    torch.ops.aten.rand_like,
    torch.ops.aten.randn_like,
    torch.ops.aten.zeros_like,
)
_VIEWS = (
    torch.ops.aten.view.default,
    torch.ops.aten._unsafe_view.default,
    torch.ops.aten._reshape_alias.default,
)
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


def _as_iterated(func: Any, args: Sequence[Any], kwargs: Any, result: Any) -> Any:
    """The result of a pointwise operator, which ATen's TensorIterator lays out."""
    if not isinstance(result, Tensor):
        return result
    if not _has_size_1(result) and all(map(is_row_major, (*args, *kwargs.values(), result))):
        return result
    return _restrided(result, result_strides(func, args, kwargs, result))


def _with_strides_of_index(result: Tensor, x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    """x[indices], whose dimensions ATen's TensorIterator (reorder_dimensions) orders by the strides
    of x and then of each index, where torch's reference looks at those of x alone."""
    if any(index is not None and index.dtype not in _INDEX_TYPES for index in indices):
        return result
    given = [d for d, index in enumerate(indices) if index is not None]
    together = given == list(range(given[0], given[-1] + 1))
    rest = [d for d in range(x.dim()) if d not in given]
    before = rest[: given[0]] if together else []  # else the indexed dimensions come first
    index_dims = result.dim() - len(rest)

    def reshaped(index: Tensor) -> list[int]:
        sizes = [1] * len(before) + list(index.shape) + [1] * (len(rest) - len(before))
        return Layout.of(index.reshape(sizes)).broadcast(shape)

    try:
        shape, strides_of_x = [*map(hint, result.shape)], [hint(x.stride(d)) for d in rest]
        strides_of_x[len(before) : len(before)] = [0] * index_dims
        chosen = torch.broadcast_tensors(*(indices[d] for d in given))
        order = physical_order(shape, [strides_of_x, *map(reshaped, chosen)])
    except UnhintedError:
        return result
    return _restrided(result, strides_in_order(result.shape, order))


def _copies(func: Any) -> bool:
    """Whether the result's memory format is an argument."""
    return any(argument.name == "memory_format" for argument in func._schema.arguments)


def _is_roll_of_two_parts(x: Tensor, _shifts: Any, dims: Sequence[int] = ()) -> bool:
    return len(dims) == 1 and x.device.type == "cpu" and not is_row_major(x)


def _restrided(result: Tensor, strides: Sequence[Any] | None) -> Tensor:
    if strides is None or _equal(strides, result.stride()):
        return result
    return torch.empty_strided(result.shape, strides, dtype=result.dtype, device=result.device)


def _as_viewed(result: Tensor, x: Tensor) -> Tensor:
    strides = view_strides(x, result.shape)
    if strides is None or _equal(strides, result.stride()):
        return result
    return torch.as_strided(result, result.shape, strides)


def _stacked(result: Tensor, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """A view of the tensors joined, except behind the last dimension (`stack` in TensorShape.cpp)."""
    at = dim % result.dim()
    if at == result.dim() - 1 or not _has_size_1(result):
        return result
    return _as_viewed(result, torch.cat(list(tensors), at))


def _dropped(result: Tensor, x: Tensor) -> Tensor:
    """On the CPU the product of x and a mask that is made like x."""
    mask = torch.empty_strided(x.shape, preserved_strides(x), dtype=x.dtype, device=x.device)
    return _restrided(result, result_strides(torch.ops.aten.mul.Tensor, (x, mask), {}, result))


def _laid_out(result: Any, sizes: Sequence[Any], strides: Sequence[Any]) -> Any:
    """The results that have these sizes with these strides."""
    if isinstance(result, Tensor):
        return _restrided(result, strides) if _equal(result.shape, sizes) else result
    return tuple(_laid_out(x, sizes, strides) for x in result)


def _is_cut_into_pixels(result: Tensor, x: Tensor, weight: Tensor, *settings: Any) -> bool:
    """Whether ATen's own kernels compute a convolution group by group, each a channel of single
    pixels: such a part reads as row-major once copied, and where it gives a pixel again."""
    *_, transposed, _output_padding, groups = settings
    pixels = x.dim() == 4 and groups > 1 and _equal(x.shape[1:], (groups, 1, 1))
    if not pixels or transposed or not is_row_major(weight):
        return False
    copied, gives_pixel = str(x.shape[0]) != "1", _equal(result.shape[1:], (groups, 1, 1))
    backend = torch._C._select_conv_backend(x, weight, *settings)
    return backend in _GROUP_BY_GROUP and (copied or gives_pixel)


def with_strides_kept(operand: Tensor, result: Any) -> Any:
    """What an operator that works in place gives, of which a trace knows the one that does not."""
    return _restrided(result, dense_strides(operand)) if isinstance(result, Tensor) else result


def with_eager_strides(func: Any, args: Sequence[Any], kwargs: Any, result: Any) -> Any:
    """Corrects operators whose fake results have other strides than their results in eager."""
    packet = func.overloadpacket
    if func in _VIEWS:
        return _as_viewed(result, args[0])
    if func is torch.ops.aten.stack.default:
        return _stacked(result, *args, **kwargs)
    if func is torch.ops.aten.pow.Scalar:
        return result.contiguous()
    if func is torch.ops.aten.log_sigmoid_forward.default:
        return tuple(x.contiguous() for x in result)
    if func is torch.ops.aten.roll.default and _is_roll_of_two_parts(*args):
        # On the CPU it is made of two parts, and so of their memory format.
        operand, dim = args[0], args[2][0]
        rest = operand.narrow(dim, 1, operand.shape[dim] - 1)
        return torch.cat([operand.narrow(dim, 0, 1), rest], dim)
    if func is torch.ops.aten.convolution.default and _is_cut_into_pixels(result, *args):
        return _restrided(result, strides_in_order(result.shape, range(result.dim())))
    if func is torch.ops.aten.index.Tensor:
        return _with_strides_of_index(result, *args)
    if torch.Tag.pointwise in func.tags and not func._schema.is_mutable and not _copies(func):
        return _as_iterated(func, args, kwargs, result)
    if args and isinstance(args[0], Tensor) and not is_row_major(args[0]):
        return _of_other_order(packet, args[0], kwargs.get("memory_format"), result)
    return result


def _of_other_order(packet: Any, operand: Tensor, memory_format: Any, result: Any) -> Any:
    """Results of an operand that is not row-major."""
    sizes = operand.shape
    # Made anew: `contiguous` would leave the strides of dimensions of size 1 as they are.
    if packet in _BATCH_NORMS:
        fitting = torch.empty_like(result[0], memory_format=_batch_norm_format(operand))
        return (fitting, *result[1:])
    if packet in _ROW_MAJOR:
        return _laid_out(result, sizes, strides_in_order(sizes, range(len(sizes))))
    if packet in _LIKE_THE_OPERAND:
        return _laid_out(result, sizes, preserved_strides(operand))
    if packet in _NEW_LIKE_THE_OPERAND and memory_format in (None, torch.preserve_format):
        return _restrided(result, dense_strides(operand))
    if packet is torch.ops.aten.native_group_norm:
        fitting = torch.empty_like(operand, memory_format=suggest_memory_format(operand))
        return _laid_out(result, sizes, fitting.stride())
    if packet is torch.ops.aten.native_dropout:
        return (_dropped(result[0], operand), *result[1:])
    return result
