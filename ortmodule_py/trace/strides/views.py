"""The strides of a view under other sizes, after computeStride of PyTorch 2.x's
aten/src/ATen/TensorUtils.cpp: torch's reference makes those of dimensions of size 1 otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ortmodule_py.trace.strides.tensor_iterator import UnhintedError, hint


def view_strides(x: Tensor, sizes: Sequence[Any]) -> list[Any] | None:
    """The strides of `x` viewed under `sizes`. None if it has no elements or no such view, or a size
    that depends on data."""
    try:
        old = [*map(hint, x.shape)]
        strides = [*map(hint, x.stride())]
        new = [*map(hint, sizes)]
    except UnhintedError:
        return None
    if 0 in old or not old:
        return None
    result: list[Any] = [0] * len(new)
    left = len(new) - 1  # the dimensions of the result that are not placed yet
    last, count = len(old) - 1, 1  # a chunk of dimensions of x that lie side by side ends at `last`
    for d in reversed(range(len(old))):
        count *= old[d]
        if d > 0 and (old[d - 1] == 1 or strides[d - 1] == count * strides[last]):
            continue
        placed, step = 1, x.stride(last)
        while left >= 0 and (placed < count or new[left] == 1):
            result[left] = step
            step = step * sizes[left]
            placed *= new[left]
            left -= 1
        if placed != count:
            return None
        last, count = d - 1, 1
    return result if left < 0 else None
