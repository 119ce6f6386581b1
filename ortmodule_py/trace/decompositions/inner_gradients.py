"""Operators in what `torch.autograd.grad` differentiates inside of forward, in a form whose gradient has rules.

Torch's formulas for gradients of norms hold their statistics fixed from the third derivative on, and are no
operators of the engine: a norm stays whole, and its gradient is that of the norm spelled out.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table

aten = torch.ops.aten


def _rounded_once(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Compute with 16-bit operands in float32, as the norms do."""

    @functools.wraps(function)
    def computed(x: Tensor, *rest: Any) -> Tensor:
        wide = torch.promote_types(x.dtype, torch.float32)
        return function(x.to(wide), *rest).to(x.dtype)

    return computed


def _scaled(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def _standardized(x: Tensor, dims: Sequence[int], eps: float) -> Tensor:
    centered = x - x.mean(dims, keepdim=True)
    return centered * torch.rsqrt(centered.square().mean(dims, keepdim=True) + eps)


@_rounded_once
def _layer_norm(
    x: Tensor,
    shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Tensor:
    return _scaled(_standardized(x, [*range(-len(shape), 0)], eps), weight, bias)


@_rounded_once
def _group_norm(
    x: Tensor,
    groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Tensor:
    size = math.prod(x.shape[1:]) // groups
    normal = _standardized(x.reshape(x.shape[0], groups, size), [-1], eps).reshape(x.shape)
    by_channel = [-1, *(1,) * (x.dim() - 2)]
    parts = (None if part is None else part.reshape(by_channel) for part in (weight, bias))
    return _scaled(normal, *parts)


@_rounded_once
def _rms_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    dims = [*range(-len(shape), 0)]
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    return _scaled(x * torch.rsqrt(x.square().mean(dims, keepdim=True) + eps), weight, None)


SPELLED_OUT: dict[Any, Callable[..., Tensor]] = {
    aten.layer_norm.default: _layer_norm,
    aten.group_norm.default: _group_norm,
    aten.rms_norm.default: _rms_norm,
}
"""Operators that stay whole -> the function whose gradient they have."""


def _batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = True,
) -> Tensor:
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    shape = [1, -1, *(1,) * (x.dim() - 2)]
    if training:
        dims = [0, *range(2, x.dim())]
        mean = wide.mean(dims)
        centered = wide - mean.reshape(shape)
        var = centered.square().mean(dims)
        count = x.numel() // x.shape[1]
        new = mean.detach(), var.detach() * (count / (count - 1))
        for known, value in zip((running_mean, running_var), new, strict=True):
            if known is not None:
                known.copy_(known * (1 - momentum) + value * momentum)
    else:
        assert running_mean is not None and running_var is not None
        centered, var = wide - running_mean.reshape(shape), running_var
    normal = centered * torch.rsqrt(var + eps).reshape(shape)
    parts = (None if part is None else part.reshape(shape) for part in (weight, bias))
    return _scaled(normal, *parts).to(x.dtype)


def _instance_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Any:
    if running_mean is not None or not use_input_stats:
        return NotImplemented
    return _group_norm(x, x.shape[1], weight, bias, eps)


SPELLED_OUT_ALWAYS: dict[Any, Callable[..., Any]] = {
    aten.batch_norm.default: _batch_norm,
    aten.instance_norm.default: _instance_norm,
}
"""Operators that are spelled out -> how, or NotImplemented."""


class Whole(torch.autograd.Function):
    """`whole(*args)`, with the gradient of `parts(*args)`."""

    @staticmethod
    def forward(ctx: Any, whole: Any, parts: Any, *args: Any) -> Any:
        ctx.parts, ctx.given = parts, args
        ctx.save_for_backward(*(arg for arg in args if isinstance(arg, Tensor)))
        return whole(*args)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        create_graph, saved = torch.is_grad_enabled(), iter(ctx.saved_tensors)
        args = [next(saved) if isinstance(arg, Tensor) else arg for arg in ctx.given]
        at = [i for i, needed in enumerate(ctx.needs_input_grad[2:]) if needed]
        with torch.enable_grad():
            result = ctx.parts(*args)
            wanted = [args[i] for i in at]
            found = torch.autograd.grad(result, wanted, gradients, create_graph=create_graph)
        given = dict(zip(at, found, strict=True))
        return None, None, *(given.get(i) for i in range(len(args)))


def _sgn(x: Tensor) -> Any:
    return NotImplemented if x.is_complex() else torch.sign(x)


def _log_sigmoid_backward(gradient: Tensor, x: Tensor, _: Tensor) -> Tensor:
    """Without the value that forward leaves, which has no gradient."""
    return gradient * torch.sigmoid(-x)


def _softplus_backward(gradient: Tensor, x: Tensor, beta: float, threshold: float) -> Tensor:
    """Of a bounded function: the derivative of what `where` leaves out would be infinity times 0."""
    scaled = x * beta
    return torch.where(scaled > threshold, gradient, gradient * torch.sigmoid(scaled))


def _elu_backward(
    gradient: Tensor,
    alpha: float,
    scale: float,
    input_scale: float,
    is_result: bool,
    x: Tensor,
) -> Tensor:
    """Bounded as well; its derivative at 0 is 0, as torch has it."""
    below = torch.where(x < 0, x, 0.0)
    curve = below + alpha * scale if is_result else (below * input_scale).exp() * (alpha * scale)
    return gradient * torch.where(x <= 0, curve * input_scale, scale)


def _huber_loss_backward(
    gradient: Tensor, x: Tensor, target: Tensor, reduction: int, delta: float
) -> Tensor:
    """Its derivative is 0 at the bound, too, as torch has it."""
    difference = x - target
    slope = torch.where(difference.abs() < delta, difference, delta * difference.sign())
    return gradient * (slope / x.numel() if reduction == 1 else slope)


_FORMULAS = (
    aten._prelu_kernel_backward.default,
    aten.binary_cross_entropy_backward.default,
    aten.diagonal_backward.default,
    aten.gelu_backward.default,
    aten.glu_backward.default,
    aten.hardsigmoid_backward.default,
    aten.hardswish_backward.default,
    aten.hardtanh_backward.default,
    aten.leaky_relu_backward.default,
    aten.logit_backward.default,
    aten.mish_backward.default,
    aten.mse_loss_backward.default,
    aten.select_backward.default,
    aten.sigmoid_backward.default,
    aten.silu_backward.default,
    aten.slice_backward.default,
    aten.smooth_l1_loss_backward.default,
    aten.soft_margin_loss_backward.default,
    aten.tanh_backward.default,
    aten.threshold_backward.default,
)


@functools.cache
def formulas() -> dict[Any, Callable[..., Any]]:
    """Decompositions of gradient operators into the operators of their formula, which have rules."""
    return {op: decomposition_table[op] for op in _FORMULAS} | {
        aten.elu_backward.default: _elu_backward,
        aten.huber_loss_backward.default: _huber_loss_backward,
        aten.log_sigmoid_backward.default: _log_sigmoid_backward,
        aten.sgn.default: _sgn,
        aten.softplus_backward.default: _softplus_backward,
    }
