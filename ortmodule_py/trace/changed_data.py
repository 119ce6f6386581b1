"""Values whose data changes where autograd does not see it: under `no_grad`, or by `.data`.

In eager PyTorch such a value keeps its gradient: that of the new data goes where that of the old would have
gone. A functional graph has a new value there, which `with_gradient_of` marks.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from ortmodule_py.trace.gradient_effects import GRAD_MODES
from ortmodule_py.trace.record import storage_key


class _WithGradientOf(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, data: Tensor, value: Tensor) -> Tensor:
        return data.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return None, gradient


def with_gradient_of(data: Tensor, value: Tensor) -> Tensor:
    """`data`, whose gradient goes to `value`, in any grad mode; the trace of a piece replaces it by a marker."""
    with torch.enable_grad():
        made: Tensor = _WithGradientOf.apply(data, value)
    return made


def backward_may_read(value: fx.Node, before: fx.Node, storage: int) -> bool:
    """Whether backward may read this value, with this memory, for a node in front of `before`."""
    for user in value.users:
        if not user < before:
            continue
        example = user.meta.get("example_value")
        if not isinstance(example, Tensor):
            if user.target not in GRAD_MODES:
                return True
        elif storage_key(example) == storage:
            if backward_may_read(user, before, storage):
                return True
        elif example.requires_grad:
            return True
    return False
