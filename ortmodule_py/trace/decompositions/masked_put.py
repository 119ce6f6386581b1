"""`x[mask] = value` as a choice, where the value is the same for all places of the mask.

The values of a mask decide how many elements are written, so the gradient of the value would have a size that
is known only when the model runs. A choice needs no such size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

MASKED_PUT = torch.ops.aten.index_put.default


def masked_put(
    self: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> Any:
    """`self` with `values` where the mask is true; NotImplemented for other indices and values."""
    masks = [(at, index) for at, index in enumerate(indices) if index is not None]
    if accumulate or len(masks) != 1 or masks[0][1].dtype is not torch.bool:
        return NotImplemented
    at, mask = masks[0]
    behind = self.dim() - at - mask.dim()
    shape = list(values.shape)
    if len(shape) > at + 1 + behind:
        return NotImplemented
    if len(shape) > behind:  # that of the selected elements, among others
        where = len(shape) - behind - 1
        if not isinstance(shape[where], int) or shape[where] != 1:
            return NotImplemented
        shape[where : where + 1] = [1] * mask.dim()
        values = values.reshape(shape)
    chosen = mask.reshape([*mask.shape, *[1] * behind])
    return torch.where(chosen, values.to(self.dtype), self)
