"""Backward from gradients."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

REFUSALS = (
    "every op on a differentiated path needs a gradient rule",
    "a gradient of a gradient must not draw numbers again",
)
"""Errors of what has no second derivative in the engine."""


def differentiate_twice(
    sources: list[Tensor], used: list[Tensor], grads: list[Tensor], between: Callable[[], None]
) -> None:
    """Backward from the gradients of `sources`, and from the outputs as well."""
    first = torch.autograd.grad(used, sources, grads, create_graph=True, allow_unused=True)
    live = [g for g in first if g is not None and g.requires_grad]
    between()
    weights = [torch.full_like(g, 0.25, requires_grad=False) for g in live]
    torch.autograd.backward([*live, *used], [*weights, *grads])
