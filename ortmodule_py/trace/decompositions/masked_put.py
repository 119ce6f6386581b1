"""`x[mask] = value` as a choice, between `x` and the value for each place of the mask.

The values of a mask decide how many elements are written, so the gradient of the value would have a size that
is known only when the model runs. A choice needs no such size: of several values each place reads its own, by its
number among the places.
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
    """`self` with `values` where the mask is true; NotImplemented for other indices and values.

    The number of values is checked at the end of the piece.
    """
    masks = [(at, index) for at, index in enumerate(indices) if index is not None]
    if accumulate or len(masks) != 1 or masks[0][1].dtype is not torch.bool:
        return NotImplemented
    if values.dim() > 0 and values.dtype is not self.dtype:
        return NotImplemented  # an error of torch's
    at, mask = masks[0]
    behind = self.dim() - at - mask.dim()
    shape = list(values.shape)
    if len(shape) > at + 1 + behind:
        return NotImplemented
    if len(shape) > behind:  # that of the selected elements, among others
        where = len(shape) - behind - 1
        if isinstance(shape[where], int) and shape[where] == 1:
            shape[where : where + 1] = [1] * mask.dim()
            values = values.reshape(shape)
        elif where == at == 0:
            values = _at_places(values, mask)
        else:
            return NotImplemented
    chosen = mask.reshape([*mask.shape, *[1] * behind])
    return torch.where(chosen, values.to(self.dtype), self)


def _at_places(values: Tensor, mask: Tensor) -> Tensor:
    """For each element of the mask the value that is written there; any value where none is."""
    number = mask.flatten().cumsum(0)
    torch.ops.aten._assert_async.msg(
        number[-1:].sum() == values.shape[0],
        "x[mask] = values: shape mismatch, there is another number of values than of places in the mask",
    )
    if isinstance(values.shape[0], int) and values.shape[0] == 0:
        return values.sum(0).reshape([*[1] * mask.dim(), *values.shape[1:]])
    own = (number - 1).clamp(min=0, max=values.shape[0] - 1)
    return values.index_select(0, own).reshape([*mask.shape, *values.shape[1:]])
