"""Decompositions of composite operators whose own decomposition cannot be captured.

- Channel and alpha dropout: torch draws in place into a tensor that requires a gradient in the trace. These
  are the formulas of `_dropout_impl` in ATen/native/Dropout.cpp, with the same draws in the same order.
- `fill_diagonal_`: torch uses `as_strided`, which a functional graph cannot represent.
- `rrelu`: torch passes a tensor to draw into, even if nothing is drawn.
- `cosine_similarity`: torch clamps the norms in place under no_grad, which a trace cannot see.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# -scale * alpha of SELU: what a dropped element becomes (Klambauer et al., 2017, section 3).
_ALPHA = 1.7580993408473766


def _masked(operand: Tensor, p: float, *, channels: bool, alpha: bool) -> Tensor:
    if channels and operand.dim() < 2:
        raise RuntimeError("Feature dropout requires at least 2 dimensions in the input")
    if p == 1:
        return operand * torch.zeros((), dtype=operand.dtype, device=operand.device)
    kept = (*operand.shape[:2], *(1,) * (operand.dim() - 2)) if channels else operand.shape
    noise = operand.detach().new_empty(kept).bernoulli_(1 - p)
    if not alpha:
        return operand * (noise / (1 - p))
    scale = 1 / math.sqrt((_ALPHA * _ALPHA * p + 1) * (1 - p))
    shift = (noise - 1) * (_ALPHA * scale) + _ALPHA * scale * p
    return operand * (noise * scale) + shift


def _parts(*, channels: bool = False, alpha: bool = False) -> Callable[..., Tensor]:
    def dropout(input: Tensor, p: float, train: bool) -> Tensor:
        if p == 0 or not train or input.numel() == 0:
            return input
        return _masked(input, p, channels=channels, alpha=alpha)

    return dropout


def _in_place(parts: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda input, *rest: input.copy_(parts(input, *rest))


def _fill_diagonal(input: Tensor, fill_value: float, wrap: bool = False) -> Tensor:
    if input.dim() < 2:
        raise RuntimeError("dimensions must larger than 1")
    if input.dim() > 2 and any(size != input.shape[0] for size in input.shape):
        raise RuntimeError("all dimensions of input must be of equal length")
    grids = [
        torch.arange(size, device=input.device).view(-1, *(1,) * (input.dim() - 1 - d))
        for d, size in enumerate(input.shape)
    ]
    if wrap and input.dim() == 2:
        grids[0] = grids[0] % (input.shape[1] + 1)
    diagonal = grids[0] == grids[1]
    for grid in grids[2:]:
        diagonal = diagonal & (grids[0] == grid)
    return input.masked_fill_(diagonal, fill_value)


def _rrelu(
    input: Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    generator: torch.Generator | None = None,
) -> Tensor:
    if not training:
        return torch.nn.functional.leaky_relu(input, (lower + upper) / 2)
    noise = torch.empty_like(input)
    return torch.ops.aten.rrelu_with_noise(input, noise, lower, upper, training, generator)


def _cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """As in eager, a norm below `eps` has the value `eps`, but its own gradient."""
    dtype = torch.promote_types(x1.dtype, x2.dtype)
    unit = []
    for x in torch.broadcast_tensors(x1.to(dtype), x2.to(dtype)):
        norm = torch.linalg.vector_norm(x, 2, dim=dim, keepdim=True)
        # The value is eps, the gradient that of the norm.
        limited = torch.where(norm < eps, norm - norm.detach() + eps, norm)
        unit.append(x / limited)
    return (unit[0] * unit[1]).sum(dim)


PARTS: dict[Any, Callable[..., Tensor]] = {
    torch.ops.aten.cosine_similarity.default: _cosine_similarity,
    torch.ops.aten.fill_diagonal_.default: _fill_diagonal,
}
"""Decomposition by operator."""

for _name, _function in (
    ("feature_dropout", _parts(channels=True)),
    ("alpha_dropout", _parts(alpha=True)),
    ("feature_alpha_dropout", _parts(channels=True, alpha=True)),
    ("rrelu", _rrelu),
):
    PARTS[getattr(torch.ops.aten, _name).default] = _function
    PARTS[getattr(torch.ops.aten, f"{_name}_").default] = _in_place(_function)
