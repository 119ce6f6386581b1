"""Rewrites of torch functions with C++ double arguments, such as `p` of dropout.

Torch specializes a symbolic float there, so that each further value is a capture. A rewrite computes
the function by other operators, which take symbolic floats. Dynamo must not specialize it either: the
patch `floats` makes it run these functions on fake tensors with the current value, without a guard.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ortmodule_py.base.changing_numbers import changes

Function = Callable[..., Any]


_rewrites: dict[Any, tuple[Function, Sequence[str], Callable[..., bool]]] = {}
"""A function in terms of others, with the parameters of the rewritten one; the arguments that may change; and
whether the rewrite applies, given all arguments by name. Comparisons of symbolic ones add guards."""


def _rewrites_function(
    target: Any, *names: str, when: Callable[..., bool] = lambda **_: True
) -> Callable[[Function], Function]:
    def register(function: Function) -> Function:
        _rewrites[target] = function, names, when
        return function

    return register


def rewrite_for(
    target: Any, args: Sequence[Any], kwargs: dict[str, Any], eager_draws: bool
) -> Function | None:
    """The rewrite of this call, or None if no argument changes or there is none.

    `target` is a function or the name of a method. With `eager_draws` random numbers must be eager's.
    """
    if not any(map(changes, args)) and not any(map(changes, kwargs.values())):
        return None
    if target not in _rewrites or (eager_draws and target is F.dropout):
        return None
    function, names, when = _rewrites[target]
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        return None  # another overload
    bound.apply_defaults()
    changing = {name for name, value in bound.arguments.items() if changes(value)}
    return function if changing.issubset(names) and when(**bound.arguments) else None


@_rewrites_function(F.dropout, "p", when=lambda p, training, **_: training and 0 < p < 1)
def _dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    kept = torch.rand_like(input, dtype=torch.float32) >= p
    result = torch.where(kept, input * (1 / (1 - p)), 0.0)
    return input.copy_(result) if inplace else result


@_rewrites_function("normal_", "mean", "std", when=lambda std, **_: std >= 0)
def _normal(self: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    return self.copy_(torch.randn_like(self) * std + mean)


@_rewrites_function("uniform_", "start", "end", when=lambda start, end, **_: start <= end)
def _uniform(self: Tensor, start: float = 0.0, end: float = 1.0) -> Tensor:
    return self.copy_(torch.rand_like(self) * (end - start) + start)


@_rewrites_function(F.batch_norm, "momentum")
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
    mean, var = running_mean, running_var
    if training and mean is not None and var is not None:
        # `F.batch_norm` updates copies with its constant momentum. It needs them, as they decide the
        # dtype of the batch's statistics, which would otherwise be that of the input.
        mean, var = mean.clone(), var.clone()
        wide = input.float() if input.dtype in (torch.bfloat16, torch.float16) else input
        of_batch = torch.var_mean(wide.detach(), [0, *range(2, input.dim())])
        for running, now in zip((running_var, running_mean), of_batch, strict=True):
            assert running is not None
            mixed = now.double() * momentum + running.double() * (1 - momentum)  # as eager
            running.copy_(mixed.to(running.dtype))
    return F.batch_norm(input, mean, var, weight, bias, training, 0.1, eps)


@_rewrites_function(
    F.cross_entropy,
    "label_smoothing",
    # A separate capture for 0, where eager omits the smooth part, which may be infinite.
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
    # Linear in the smoothing, for all reductions and kinds of targets.
    given = (input, target, weight, size_average, ignore_index, reduce, reduction)
    sharp, smooth = (F.cross_entropy(*given, smoothing) for smoothing in (0.0, 1.0))
    return sharp * (1 - label_smoothing) + smooth * label_smoothing


@_rewrites_function(torch.linalg.vector_norm, "ord", when=lambda ord, out, **_: _is_power(ord, out))
def _vector_norm(
    x: Tensor,
    ord: float = 2,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    result = dtype or x.dtype
    size = x.to(result).abs()
    size = size.float() if result in (torch.bfloat16, torch.float16) else size
    dims = list(range(x.dim())) if dim is None else dim
    total = _power_or_zero(size, ord).sum(dims, keepdim=keepdim)
    return _power_or_zero(total, 1 / ord).to(size.dtype if result.is_complex else result)


def _power_or_zero(x: Tensor, exponent: float) -> Tensor:
    """x ** exponent, with 0 and a gradient of 0 for 0, as the gradients of torch's norms have it."""
    zero = x == 0
    return torch.where(zero, 0.0, torch.where(zero, 1.0, x) ** exponent)


def _is_power(p: float, out: Tensor | None = None, **_: Any) -> bool:
    """Whether a norm is the root of a sum of powers."""
    return out is None and 0 < p < math.inf


@_rewrites_function("norm", "p", when=_is_power)
def _norm(
    self: Tensor,
    p: float = 2,
    dim: Any = None,
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor:
    return _vector_norm(self, p, dim, keepdim, dtype=dtype)


@_rewrites_function(torch.norm, "p", when=_is_power)
def _norm_function(
    input: Tensor,
    p: float = 2,
    dim: Any = None,
    keepdim: bool = False,
    out: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    return _vector_norm(input, p, dim, keepdim, dtype=dtype)


def _is_vector_norm(A: Tensor, ord: float, dim: Any, out: Tensor | None, **_: Any) -> bool:
    return _is_power(ord, out) and (isinstance(dim, int) or (dim is None and A.dim() == 1))


@_rewrites_function(torch.linalg.norm, "ord", when=_is_vector_norm)
def _linalg_norm(
    A: Tensor,
    ord: float = 2,
    dim: Any = None,
    keepdim: bool = False,
    *,
    out: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    return _vector_norm(A, ord, dim, keepdim, dtype=dtype)


@_rewrites_function(F.normalize, "p", when=_is_power)
def _normalize(
    input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: Tensor | None = None
) -> Tensor:
    return input / _vector_norm(input, p, dim, True).clamp_min(eps).expand_as(input)


@_rewrites_function(F.pairwise_distance, "p", when=_is_power)
def _pairwise_distance(
    x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Tensor:
    return _vector_norm(x1 - x2 + eps, p, -1, keepdim)


@_rewrites_function(torch.as_tensor, "data")
def _as_tensor(
    data: float, dtype: torch.dtype | None = None, device: torch.device | None = None
) -> Tensor:
    return torch.scalar_tensor(data, dtype=dtype or torch.get_default_dtype(), device=device)
