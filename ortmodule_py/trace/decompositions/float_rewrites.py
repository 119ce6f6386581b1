"""Rewrites of ATen operators with a Python number that changes from call to call.

Each uses operators that take the number as a scalar tensor, in eager's precision: 16-bit operands are
computed in float32 and rounded once. The number is used in float32 or first rounded to 16 bits, as in
the eager kernel of the operator. Calls without a changing number are not rewritten.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ortmodule_py.base.changing_numbers import changes

aten = torch.ops.aten
Rewrite = Callable[..., Any]

_rewrites: dict[Any, Rewrite] = {}


def rewrites(*targets: Any) -> Callable[[Rewrite], Rewrite]:
    """Register the decorated function, which takes their arguments, as the rewrite of these overloads."""

    def register(function: Rewrite) -> Rewrite:
        _rewrites.update(dict.fromkeys(targets, function))
        return function

    return register


@functools.cache
def table() -> dict[Any, Rewrite]:
    """The decomposition table for `make_fx`; a rewrite returns NotImplemented if no number changes."""
    return {target: _where_a_number_changes(function) for target, function in _rewrites.items()}


def _where_a_number_changes(function: Rewrite) -> Rewrite:
    @functools.wraps(function)
    def rewrite(*args: Any, **kwargs: Any) -> Any:
        if not any(map(changes, args)) and not any(map(changes, kwargs.values())):
            return NotImplemented
        return function(*args, **kwargs)

    return rewrite


def _number(value: Any, like: Tensor) -> Any:
    """A changing number as a scalar tensor of the dtype of `like`; other values as they are."""
    return _as_tensor(value, like) if changes(value) else value


def _as_tensor(value: Any, like: Tensor) -> Tensor:
    """A number as a scalar tensor of the dtype of `like`."""
    return torch.scalar_tensor(value, dtype=like.dtype, device=like.device)


def _result_type(*operands: Any) -> torch.dtype:
    """Eager's result dtype; a changing number counts as a Python float or int."""
    plain = [
        operand if isinstance(operand, Tensor) else 1 if _is_integer(operand) else 1.5
        for operand in operands
    ]
    dtype = torch.result_type(plain[0], plain[1])
    for operand in plain[2:]:
        if isinstance(operand, Tensor):
            dtype = torch.promote_types(dtype, operand.dtype)
        elif isinstance(operand, float) and not (dtype.is_floating_point or dtype.is_complex):
            dtype = torch.get_default_dtype()
    return dtype


def _in_type(dtype: torch.dtype, device: torch.device, *operands: Any) -> list[Tensor]:
    return [
        operand.to(dtype)
        if isinstance(operand, Tensor)
        else torch.scalar_tensor(operand, dtype=dtype, device=device)
        for operand in operands
    ]


def _is_integer(value: Any) -> bool:
    return isinstance(value, (int, torch.SymInt))


def _computed(
    function: Callable[..., Tensor], dtype: torch.dtype, *operands: Any, rounds: bool = False
) -> Tensor:
    """`function` of the operands in eager's compute dtype for a result of `dtype`.

    With `rounds` changing numbers are rounded to `dtype` first.
    """
    compute = torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype
    device = next(operand.device for operand in operands if isinstance(operand, Tensor))

    def fit(operand: Any) -> Any:
        if isinstance(operand, Tensor):
            return operand.to(compute)
        if rounds and changes(operand):
            return torch.scalar_tensor(operand, dtype=dtype, device=device).to(compute)
        return torch.scalar_tensor(operand, dtype=compute, device=device)

    return function(*map(fit, operands)).to(dtype)


# ---- arithmetic ---------------------------------------------------------------------------------


def _register_computed(
    function: Callable[..., Tensor], *targets: Any, rounds: bool = False
) -> None:
    @rewrites(*targets)
    def computed(self: Any, other: Any) -> Tensor:
        return _computed(function, _result_type(self, other), self, other, rounds=rounds)


_register_computed(torch.mul, aten.mul.Tensor, aten.mul.Scalar)
_register_computed(torch.floor_divide, aten.floor_divide.default, aten.floor_divide.Scalar)
_register_computed(torch.pow, aten.pow.Tensor_Scalar, aten.pow.Scalar, rounds=True)


@rewrites(aten.div.Tensor, aten.div.Scalar)
def _div(self: Any, other: Any) -> Tensor:
    dtype = _result_type(self, other)
    if not (dtype.is_floating_point or dtype.is_complex):
        dtype = torch.get_default_dtype()
    return _computed(torch.div, dtype, self, other)


def _register_sum(join: Callable[..., Tensor], *targets: Any, turned: bool = False) -> None:
    @rewrites(*targets)
    def total(self: Any, other: Any, alpha: Any = 1) -> Tensor:
        first, second = (other, self) if turned else (self, other)
        dtype = _result_type(first, second)
        if not changes(alpha) and alpha == 1:
            return _computed(join, dtype, first, second, rounds=True)

        def scaled(a: Tensor, b: Tensor, factor: Tensor) -> Tensor:
            return join(a, b * factor)

        return _computed(scaled, dtype, first, second, alpha, rounds=True)


_register_sum(torch.add, aten.add.Tensor, aten.add.Scalar)
_register_sum(torch.sub, aten.sub.Tensor, aten.sub.Scalar)
_register_sum(torch.sub, aten.rsub.Tensor, aten.rsub.Scalar, turned=True)


@rewrites(aten.addcmul.default)
def _addcmul(self: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Any = 1) -> Tensor:
    dtype = _result_type(self, tensor1, tensor2)
    return _computed(lambda s, a, b, v: s + v * a * b, dtype, self, tensor1, tensor2, value)


@rewrites(aten.addcdiv.default)
def _addcdiv(self: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Any = 1) -> Tensor:
    dtype = _result_type(self, tensor1, tensor2)
    return _computed(lambda s, a, b, v: s + v * a / b, dtype, self, tensor1, tensor2, value)


@rewrites(aten.div.Tensor_mode, aten.div.Scalar_mode)
def _div_rounded(self: Any, other: Any, *, rounding_mode: str | None) -> Tensor:
    if rounding_mode is None:
        return _div(self, other)
    divide = functools.partial(torch.div, rounding_mode=rounding_mode)
    return _computed(divide, _result_type(self, other), self, other)


# ---- comparisons and choices --------------------------------------------------------------------


def _register_in_result_type(name: str) -> None:
    """Register an operator that rounds the number to the result's dtype before it computes."""
    function, packet = getattr(torch, name), getattr(aten, name)

    @rewrites(packet.Scalar, packet.Tensor)
    def computed(self: Any, other: Any) -> Tensor:
        dtype = _result_type(self, other)
        device = (self if isinstance(self, Tensor) else other).device
        return function(*_in_type(dtype, device, self, other))


for _name in ("eq", "ne", "lt", "le", "gt", "ge", "remainder", "fmod"):
    _register_in_result_type(_name)


@rewrites(aten.masked_fill.Scalar)
def _masked_fill(self: Tensor, mask: Tensor, value: Any) -> Tensor:
    return torch.where(mask, _number(value, self), self)


@rewrites(aten.where.Scalar, aten.where.ScalarSelf, aten.where.ScalarOther)
def _where(condition: Tensor, self: Any, other: Any) -> Tensor:
    if isinstance(self, Tensor) or isinstance(other, Tensor):
        dtype = _result_type(self, other)
    else:
        dtype = torch.get_default_dtype()
    return torch.where(condition, *_in_type(dtype, condition.device, self, other))


@rewrites(aten.clamp.default)
def _clamp(self: Tensor, min: Any = None, max: Any = None) -> Tensor:
    self = self.to(_result_type(self, *(bound for bound in (min, max) if bound is not None)))
    limited, inside = aten.detach.default(self), self == self
    if min is not None:
        low = _as_tensor(min, self)
        limited, inside = torch.where(limited < low, low, limited), inside & (self >= low)
    if max is not None:
        high = _as_tensor(max, self)
        limited, inside = torch.where(limited > high, high, limited), inside & (self <= high)
    return torch.where(inside, self, limited)


@rewrites(aten.clamp_min.default)
def _clamp_min(self: Tensor, min: Any) -> Tensor:
    return _clamp(self, min=min)


@rewrites(aten.clamp_max.default)
def _clamp_max(self: Tensor, max: Any) -> Tensor:
    return _clamp(self, max=max)


@rewrites(aten.lerp.Scalar)
def _lerp(self: Tensor, end: Tensor, weight: Any) -> Tensor:
    def mix(a: Tensor, b: Tensor, w: Tensor, rest: Tensor) -> Tensor:
        # From the nearer end, so that weights of 0 and 1 give the ends.
        return torch.where(w.abs() < 0.5, a + w * (b - a), b - (b - a) * rest)

    return _computed(mix, self.dtype, self, end, weight, 1 - weight)


@rewrites(aten.leaky_relu.default)
def _leaky_relu(self: Tensor, negative_slope: Any = 0.01) -> Tensor:
    return _computed(lambda x, a: torch.where(x > 0, x, x * a), self.dtype, self, negative_slope)


# ---- tensors of one number ----------------------------------------------------------------------


def _register_full(operator: Any) -> None:
    @rewrites(operator)
    def full(*args: Any, **options: Any) -> Tensor:
        *rest, value = args
        if operator is aten.full.default and options.get("dtype") is None:
            options["dtype"] = torch.int64 if _is_integer(value) else torch.get_default_dtype()
        # 1 * number is exact, also for a negative zero.
        ones = operator(*rest, 1, **options)
        return ones * _number(value, ones)


for _operator in (aten.full.default, aten.full_like.default, aten.new_full.default):
    _register_full(_operator)


@rewrites(aten.fill.Scalar)
def _fill(self: Tensor, value: Any) -> Tensor:
    return aten.fill.Tensor(self, _number(value, self))


@rewrites(aten.index_fill.int_Scalar)
def _index_fill(self: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    return aten.index_fill.int_Tensor(self, dim, index, _number(value, self))
