"""Functions of torch whose float arguments are no tensors and no `Scalar`s: `p` of a dropout, `eps`.

Torch takes the value of now for those, with a guard, so that each further value would be a capture.
A rewrite here computes the function from other operators, which take a number that changes.
Dynamo itself must not take the value either: while it traces for us, it runs these functions with
the value of now to see what comes out, which does not depend on it, and sets no guard.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ortmodule_py.base.changing_numbers import changes

Function = Callable[..., Any]


@dataclass(frozen=True)
class Rewrite:
    """A function in terms of others, for arguments that change."""

    function: Function
    """Has the parameters of what it stands for."""
    names: frozenset[str]
    """The arguments that may change."""
    when: Callable[..., bool]
    """Takes all arguments by name; comparing those that change leaves a guard on the comparison alone."""
    draws: bool
    """Whether its random numbers are others than eager's."""


_rewrites: dict[Any, Rewrite] = {}


def _rewrites_function(
    *targets: Any,
    names: Sequence[str],
    when: Callable[..., bool] = lambda **_: True,
    draws: bool = False,
) -> Callable[[Function], Function]:
    def register(function: Function) -> Function:
        rewrite = Rewrite(function, frozenset(names), when, draws)
        _rewrites.update(dict.fromkeys(targets, rewrite))
        return function

    return register


def rewrite_for(
    target: Any, args: Sequence[Any], kwargs: dict[str, Any], eager_draws: bool
) -> Function | None:
    """What computes this call from operators that take changing numbers, if there is such a thing.

    `target` is a function, or the name of a method. With `eager_draws` random numbers must be eager's.
    """
    if not any(map(changes, args)) and not any(map(changes, kwargs.values())):
        return None
    rewrite = _rewrites.get(target)
    if rewrite is None or (rewrite.draws and eager_draws):
        return None
    try:
        bound = inspect.signature(rewrite.function).bind(*args, **kwargs)
    except TypeError:
        return None  # an overload that is not known here
    bound.apply_defaults()
    changing = {name for name, value in bound.arguments.items() if changes(value)}
    if not changing <= rewrite.names or not rewrite.when(**bound.arguments):
        return None
    return rewrite.function


# ---- random numbers -----------------------------------------------------------------------------


@_rewrites_function(
    F.dropout, names=("p",), when=lambda p, training, **_: training and 0 < p < 1, draws=True
)
def _dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    kept = torch.rand_like(input, dtype=torch.float32) >= p
    result = torch.where(kept, input * (1 / (1 - p)), 0.0)
    return input.copy_(result) if inplace else result


@_rewrites_function("normal_", names=("mean", "std"), when=lambda std, **_: std >= 0)
def _normal(self: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    return self.copy_(torch.randn_like(self) * std + mean)


@_rewrites_function("uniform_", names=("start", "end"), when=lambda start, end, **_: start <= end)
def _uniform(self: Tensor, start: float = 0.0, end: float = 1.0) -> Tensor:
    return self.copy_(torch.rand_like(self) * (end - start) + start)


# ---- norms --------------------------------------------------------------------------------------


def _normalized(x: Tensor, dims: Sequence[int], eps: float) -> Tensor:
    """(x - mean) / sqrt(variance + eps)."""
    centred = x - x.mean(dims, keepdim=True)
    return centred * torch.rsqrt(centred.square().mean(dims, keepdim=True) + eps)


def _in_float32(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    if weight is not None:
        x = x * weight.to(x.dtype)
    if bias is not None:
        x = x + bias.to(x.dtype)
    return x.to(dtype)


@_rewrites_function(F.layer_norm, torch.layer_norm, names=("eps",))
def _layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    dims = list(range(-len(normalized_shape), 0))
    return _affine(_normalized(_in_float32(input), dims, eps), weight, bias, input.dtype)


@_rewrites_function(F.rms_norm, torch.rms_norm, names=("eps",))
def _rms_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    x = _in_float32(input)
    dims = list(range(-len(normalized_shape), 0))
    scaled = x * torch.rsqrt(x.square().mean(dims, keepdim=True) + eps)
    return _affine(scaled, weight, None, input.dtype)


@_rewrites_function(F.group_norm, torch.group_norm, names=("eps",))
def _group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    x = _in_float32(input)
    batch, channels, *_ = x.shape
    groups = x.reshape(batch, num_groups, -1)
    y = _normalized(groups, [2], eps).reshape(x.shape)
    shape = [1, channels] + [1] * (x.dim() - 2)
    weight = None if weight is None else weight.reshape(shape)
    bias = None if bias is None else bias.reshape(shape)
    return _affine(y, weight, bias, input.dtype)


@_rewrites_function(F.batch_norm, names=("eps", "momentum"))
def _batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    x = _in_float32(input)
    dims = [0, *range(2, x.dim())]
    shape = [1, -1] + [1] * (x.dim() - 2)
    if training and running_mean is not None and running_var is not None:
        variance, mean = torch.var_mean(x.detach(), dims)
        for running, now in ((running_mean, mean), (running_var, variance)):
            # In float64, as eager.
            mixed = now.double() * momentum + running.double() * (1 - momentum)
            running.copy_(mixed.to(running.dtype))
    if not changes(eps):
        # Copies, as those of the module have their values; without any, those of the batch would have
        # the type of the input, 16 bits perhaps.
        mean, var = (
            s.clone() if training and s is not None else s for s in (running_mean, running_var)
        )
        return F.batch_norm(input, mean, var, weight, bias, training, 0.1, eps)
    if training or running_mean is None or running_var is None:
        y = _normalized(x, dims, eps)
    else:
        scale = torch.rsqrt(running_var.to(x.dtype) + eps)
        y = (x - running_mean.to(x.dtype).reshape(shape)) * scale.reshape(shape)
    weight = None if weight is None else weight.reshape(shape)
    bias = None if bias is None else bias.reshape(shape)
    return _affine(y, weight, bias, input.dtype)


# ---- losses -------------------------------------------------------------------------------------


def _by_reduction(*, size_average: bool | None, reduce: bool | None, **_: Any) -> bool:
    """Whether `reduction` alone says how the loss is reduced, and not what stood for it once."""
    return size_average is None and reduce is None


def _reduced(loss: Tensor, reduction: str) -> Tensor:
    if reduction == "none":
        return loss
    return loss.mean() if reduction == "mean" else loss.sum()


@_rewrites_function(
    F.cross_entropy,
    names=("label_smoothing",),
    # At 0 the smooth part is left out, which is infinite where a logit is: a capture of its own.
    when=lambda label_smoothing, **_: 0 < label_smoothing <= 1,
)
def _cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    # Linear in the smoothing, whatever the reduction and the kind of target.
    sharp, smooth = (
        F.cross_entropy(
            input, target, weight, size_average, ignore_index, reduce, reduction, smoothing
        )
        for smoothing in (0.0, 1.0)
    )
    return sharp * (1 - label_smoothing) + smooth * label_smoothing


@_rewrites_function(
    F.smooth_l1_loss,
    names=("beta",),
    when=lambda beta, **others: _by_reduction(**others) and beta > 0,
)
def _smooth_l1_loss(
    input: Tensor,
    target: Tensor,
    size_average: None = None,
    reduce: None = None,
    reduction: str = "mean",
    beta: float = 1.0,
) -> Tensor:
    distance = (input - target).abs()
    far = distance >= beta  # an infinite distance must not meet the gradient 0 of the other branch
    near = torch.where(far, 0.0, distance)
    near = 0.5 * near * near / beta
    return _reduced(torch.where(far, distance - 0.5 * beta, near), reduction)


@_rewrites_function(
    F.huber_loss, names=("delta",), when=lambda delta, weight, **_: weight is None and delta > 0
)
def _huber_loss(
    input: Tensor,
    target: Tensor,
    reduction: str = "mean",
    delta: float = 1.0,
    weight: Tensor | None = None,
) -> Tensor:
    distance = (input - target).abs()
    far = distance > delta
    near = torch.where(far, 0.0, distance)
    near = 0.5 * near * near
    return _reduced(torch.where(far, delta * (distance - 0.5 * delta), near), reduction)


@_rewrites_function(F.margin_ranking_loss, names=("margin",), when=_by_reduction)
def _margin_ranking_loss(
    input1: Tensor,
    input2: Tensor,
    target: Tensor,
    margin: float = 0,
    size_average: None = None,
    reduce: None = None,
    reduction: str = "mean",
) -> Tensor:
    return _reduced((-target * (input1 - input2) + margin).clamp_min(0), reduction)


@_rewrites_function(
    F.triplet_margin_loss,
    names=("margin",),
    when=lambda margin, **others: _by_reduction(**others) and margin > 0,
)
def _triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float = 1.0,
    p: float = 2,
    eps: float = 1e-6,
    swap: bool = False,
    size_average: None = None,
    reduce: None = None,
    reduction: str = "mean",
) -> Tensor:
    near = F.pairwise_distance(anchor, positive, p, eps)
    far = F.pairwise_distance(anchor, negative, p, eps)
    if swap:
        far = torch.minimum(far, F.pairwise_distance(positive, negative, p, eps))
    return _reduced((margin + near - far).clamp_min(0), reduction)


# ---- others -------------------------------------------------------------------------------------


@_rewrites_function(F.cosine_similarity, torch.cosine_similarity, names=("eps",))
def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """As in eager, where a norm below `eps` has the value `eps` but its own gradient."""
    dtype = torch.promote_types(x1.dtype, x2.dtype)
    unit = []
    for x in torch.broadcast_tensors(x1.to(dtype), x2.to(dtype)):
        norm = torch.linalg.vector_norm(x, 2, dim=dim, keepdim=True)
        # Zero plus eps: the value of the bound with the gradient of the norm.
        limited = torch.where(norm < eps, norm - norm.detach() + eps, norm)
        unit.append(x / limited)
    return (unit[0] * unit[1]).sum(dim)


@_rewrites_function(
    F.scaled_dot_product_attention, names=("scale",), when=lambda scale, **_: scale > 0
)
def _scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    assert scale is not None
    usual = math.sqrt(query.shape[-1])
    options: dict[str, Any] = {"enable_gqa": True} if enable_gqa else {}
    return F.scaled_dot_product_attention(
        query * (scale * usual), key, value, attn_mask, dropout_p, is_causal, **options
    )


@_rewrites_function(
    torch.nan_to_num,
    "nan_to_num",
    names=("nan", "posinf", "neginf"),
    when=lambda input, **_: input.is_floating_point(),
)
def _nan_to_num(
    input: Tensor, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    limits = torch.finfo(input.dtype)
    above = limits.max if posinf is None else posinf
    below = limits.min if neginf is None else neginf
    result = torch.where(input == math.inf, above, input)
    result = torch.where(input == -math.inf, below, result)
    return torch.where(input.isnan(), nan, result)


@_rewrites_function(torch.logit, torch.special.logit, "logit", names=("eps",))
def _logit(input: Tensor, eps: float | None = None) -> Tensor:
    assert eps is not None
    inner = input.clamp(eps, 1 - eps)
    return torch.log(inner / (1 - inner))


@_rewrites_function(
    F.pad,
    torch._C._nn.pad,
    names=("value",),
    when=lambda input, mode, **_: mode == "constant" and input.is_floating_point(),
)
def _pad(
    input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None
) -> Tensor:
    padded = F.pad(input, pad)
    outside = F.pad(torch.zeros_like(input), pad, value=1.0) != 0
    return torch.where(outside, value, padded)


@_rewrites_function(
    torch.float_power,
    "float_power",
    names=("exponent",),
    when=lambda input, **_: isinstance(input, Tensor),
)
def _float_power(input: Tensor, exponent: float) -> Tensor:
    return torch.pow(input.double(), exponent)


@_rewrites_function(torch.as_tensor, names=("data",))
def _as_tensor(
    data: float, dtype: torch.dtype | None = None, device: torch.device | None = None
) -> Tensor:
    return torch.scalar_tensor(data, dtype=dtype or torch.get_default_dtype(), device=device)
