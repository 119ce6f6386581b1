"""ATen operators that take a Python number, for numbers that change from call to call.

Each is written in operators that take the number as a tensor without dimensions, in eager's
precision: operands of 16 bits are computed in float32 and rounded once; the number is taken in
float32 too or rounded to 16 bits first, as eager's kernels do, which differ in this. Calls without
such a number stay as they are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ortmodule_py.base.changing_numbers import changes

aten = torch.ops.aten
Rewrite = Callable[..., Any]

_rewrites: dict[Any, Rewrite] = {}


def rewrites(*targets: Any) -> Callable[[Rewrite], Rewrite]:
    """Register a rewrite of these overloads, which takes their arguments."""

    def register(function: Rewrite) -> Rewrite:
        _rewrites.update(dict.fromkeys(targets, function))
        return function

    return register


@functools.cache
def table() -> dict[Any, Rewrite]:
    """For `make_fx`: a rewrite gives NotImplemented where no number changes."""
    return {target: _where_a_number_changes(function) for target, function in _rewrites.items()}


def _where_a_number_changes(function: Rewrite) -> Rewrite:
    @functools.wraps(function)
    def rewrite(*args: Any, **kwargs: Any) -> Any:
        if not any(map(changes, args)) and not any(map(changes, kwargs.values())):
            return NotImplemented
        return function(*args, **kwargs)

    return rewrite


def number(value: Any, like: Tensor, dtype: torch.dtype | None = None) -> Any:
    """A changing number as a tensor of the type of `like`; other values as they are."""
    if not changes(value):
        return value
    return torch.scalar_tensor(value, dtype=dtype or like.dtype, device=like.device)


def as_tensor(value: Any, like: Tensor) -> Tensor:
    """Any number as a tensor of the type of `like`."""
    if isinstance(value, Tensor):
        return value
    return torch.scalar_tensor(value, dtype=like.dtype, device=like.device)


def _result_type(*operands: Any) -> torch.dtype:
    """Eager's; a changing number counts as a float or an integer of Python."""
    plain = [
        operand if isinstance(operand, Tensor) else 1 if _is_integer(operand) else 1.5
        for operand in operands
    ]
    dtype = torch.result_type(plain[0], plain[1])
    for operand in plain[2:]:
        if isinstance(operand, Tensor):
            dtype = torch.promote_types(dtype, operand.dtype)
        elif isinstance(operand, float) and not dtype.is_floating_point:
            dtype = torch.get_default_dtype()
    return dtype


def _is_integer(value: Any) -> bool:
    return isinstance(value, (int, torch.SymInt))


def _computed(
    function: Callable[..., Tensor], dtype: torch.dtype, *operands: Any, rounds: bool = False
) -> Tensor:
    """`function` of the operands in the type that eager computes a result of `dtype` in.

    With `rounds` the numbers are rounded to `dtype` first.
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


@rewrites(aten.mul.Tensor, aten.mul.Scalar)
def _mul(self: Any, other: Any) -> Tensor:
    return _computed(torch.mul, _result_type(self, other), self, other)


@rewrites(aten.div.Tensor, aten.div.Scalar)
def _div(self: Any, other: Any) -> Tensor:
    dtype = _result_type(self, other)
    if not dtype.is_floating_point:
        dtype = torch.get_default_dtype()
    return _computed(torch.div, dtype, self, other)


@rewrites(aten.add.Tensor, aten.add.Scalar)
def _add(self: Any, other: Any, alpha: Any = 1) -> Tensor:
    return _sum(self, other, alpha, torch.add)


@rewrites(aten.sub.Tensor, aten.sub.Scalar)
def _sub(self: Any, other: Any, alpha: Any = 1) -> Tensor:
    return _sum(self, other, alpha, torch.sub)


@rewrites(aten.rsub.Tensor, aten.rsub.Scalar)
def _rsub(self: Any, other: Any, alpha: Any = 1) -> Tensor:
    return _sum(other, self, alpha, torch.sub)


def _sum(self: Any, other: Any, alpha: Any, join: Callable[..., Tensor]) -> Tensor:
    dtype = _result_type(self, other)
    if not changes(alpha) and alpha == 1:
        return _computed(join, dtype, self, other, rounds=True)

    def scaled(a: Tensor, b: Tensor, factor: Tensor) -> Tensor:
        return join(a, b * factor)

    return _computed(scaled, dtype, self, other, alpha, rounds=True)


@rewrites(aten.addcmul.default)
def _addcmul(self: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Any = 1) -> Tensor:
    dtype = _result_type(self, tensor1, tensor2)
    return _computed(lambda s, a, b, v: s + v * a * b, dtype, self, tensor1, tensor2, value)


@rewrites(aten.addcdiv.default)
def _addcdiv(self: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Any = 1) -> Tensor:
    dtype = _result_type(self, tensor1, tensor2)
    return _computed(lambda s, a, b, v: s + v * a / b, dtype, self, tensor1, tensor2, value)


@rewrites(aten.addmm.default)
def _addmm(self: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    return _scaled_sum(self, torch.mm(mat1, mat2), beta, alpha)


@rewrites(aten.baddbmm.default)
def _baddbmm(
    self: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Any = 1, alpha: Any = 1
) -> Tensor:
    return _scaled_sum(self, torch.bmm(batch1, batch2), beta, alpha)


def _scaled_sum(self: Tensor, product: Tensor, beta: Any, alpha: Any) -> Tensor:
    return _computed(lambda s, p, b, a: b * s + a * p, product.dtype, self, product, beta, alpha)


@rewrites(aten.pow.Tensor_Scalar)
def _pow(self: Tensor, exponent: Any) -> Tensor:
    return _computed(torch.pow, _result_type(self, exponent), self, exponent, rounds=True)


@rewrites(aten.pow.Scalar)
def _pow_of_number(self: Any, exponent: Tensor) -> Tensor:
    return _computed(torch.pow, _result_type(exponent, self), self, exponent, rounds=True)


def _in_result_type(function: Callable[..., Tensor], self: Any, other: Any) -> Tensor:
    """Operators that round the number to the result's type before they compute."""
    dtype = _result_type(self, other)
    return function(
        *(
            value.to(dtype)
            if isinstance(value, Tensor)
            else torch.scalar_tensor(value, dtype=dtype, device=peer.device)
            for value, peer in ((self, other), (other, self))
        )
    )


@rewrites(aten.remainder.Scalar, aten.remainder.Tensor)
def _remainder(self: Any, other: Any) -> Tensor:
    return _in_result_type(torch.remainder, self, other)


@rewrites(aten.fmod.Scalar, aten.fmod.Tensor)
def _fmod(self: Any, other: Any) -> Tensor:
    return _in_result_type(torch.fmod, self, other)


@rewrites(aten.floor_divide.default, aten.floor_divide.Scalar)
def _floor_divide(self: Any, other: Any) -> Tensor:
    return _computed(torch.floor_divide, _result_type(self, other), self, other)


@rewrites(aten.div.Tensor_mode, aten.div.Scalar_mode)
def _div_rounded(self: Any, other: Any, *, rounding_mode: str | None) -> Tensor:
    if rounding_mode is None:
        return _div(self, other)
    divide = functools.partial(torch.div, rounding_mode=rounding_mode)
    return _computed(divide, _result_type(self, other), self, other)


# ---- comparisons and choices --------------------------------------------------------------------


def _register_comparison(name: str) -> None:
    function = getattr(torch, name)
    packet = getattr(aten, name)

    @rewrites(packet.Scalar, packet.Tensor)
    def compare(self: Any, other: Any) -> Tensor:
        return _in_result_type(function, self, other)


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    _register_comparison(_name)


@rewrites(aten.masked_fill.Scalar)
def _masked_fill(self: Tensor, mask: Tensor, value: Any) -> Tensor:
    return torch.where(mask, number(value, self), self)


@rewrites(aten.where.Scalar, aten.where.ScalarSelf, aten.where.ScalarOther)
def _where(condition: Tensor, self: Any, other: Any) -> Tensor:
    if isinstance(self, Tensor) or isinstance(other, Tensor):
        dtype = _result_type(self, other)
    else:
        dtype = torch.get_default_dtype()
    self, other = (
        value.to(dtype)
        if isinstance(value, Tensor)
        else torch.scalar_tensor(value, dtype=dtype, device=condition.device)
        for value in (self, other)
    )
    return torch.where(condition, self, other)


def bounded(self: Tensor, low: Any, high: Any, inside: Tensor) -> Tensor:
    """`self` limited to bounds, whose gradient passes where `inside`."""
    limited = aten.detach.default(self)
    if low is not None:
        limited = torch.where(limited < low, as_tensor(low, self), limited)
    if high is not None:
        limited = torch.where(limited > high, as_tensor(high, self), limited)
    return torch.where(inside, self, limited)


@rewrites(aten.clamp.default)
def _clamp(self: Tensor, min: Any = None, max: Any = None) -> Tensor:
    bounds = [value for value in (min, max) if value is not None]
    self = self.to(_result_type(self, *bounds))
    low, high = number(min, self), number(max, self)
    if low is None or high is None:
        inside = self <= high if low is None else self >= low
    else:
        inside = (self >= low) & (self <= high)
    return bounded(self, low, high, inside)


@rewrites(aten.clamp_min.default)
def _clamp_min(self: Tensor, min: Any) -> Tensor:
    return _clamp(self, min=min)


@rewrites(aten.clamp_max.default)
def _clamp_max(self: Tensor, max: Any) -> Tensor:
    return _clamp(self, max=max)


@rewrites(aten.hardtanh.default)
def _hardtanh(self: Tensor, min_val: Any = -1, max_val: Any = 1) -> Tensor:
    low, high = number(min_val, self), number(max_val, self)
    return bounded(self, low, high, ~((self <= low) | (self >= high)))


@rewrites(aten.lerp.Scalar)
def _lerp(self: Tensor, end: Tensor, weight: Any) -> Tensor:
    def mix(a: Tensor, b: Tensor, w: Tensor, rest: Tensor) -> Tensor:
        # From the nearer end, so that weights of 0 and 1 give the ends.
        return torch.where(w.abs() < 0.5, a + w * (b - a), b - (b - a) * rest)

    return _computed(mix, self.dtype, self, end, weight, 1 - weight)


# ---- activations --------------------------------------------------------------------------------


@rewrites(aten.leaky_relu.default)
def _leaky_relu(self: Tensor, negative_slope: Any = 0.01) -> Tensor:
    return _computed(lambda x, a: torch.where(x > 0, x, x * a), self.dtype, self, negative_slope)


@rewrites(aten.elu.default)
def _elu(self: Tensor, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Tensor:
    def elu(x: Tensor, negative: Tensor, positive: Tensor, inner: Tensor) -> Tensor:
        # What is not chosen stays finite, or its gradient would be NaN.
        below = torch.where(x <= 0, x, 0.0)
        return torch.where(x <= 0, torch.expm1(below * inner) * negative, x * positive)

    return _computed(elu, self.dtype, self, alpha * scale, scale, input_scale)


@rewrites(aten.celu.default)
def _celu(self: Tensor, alpha: Any = 1) -> Tensor:
    return _elu(self, alpha, 1, 1 / alpha)


@rewrites(aten.softplus.default)
def _softplus(self: Tensor, beta: Any = 1, threshold: Any = 20) -> Tensor:
    def softplus(x: Tensor, factor: Tensor, limit: Tensor) -> Tensor:
        linear = x * factor > limit
        small = torch.where(linear, 0.0, x * factor)
        return torch.where(linear, x, torch.log1p(torch.exp(small)) / factor)

    return _computed(softplus, self.dtype, self, beta, threshold)


@rewrites(aten.threshold.default)
def _threshold(self: Tensor, threshold: Any, value: Any) -> Tensor:
    return torch.where(self <= number(threshold, self), as_tensor(value, self), self)


@rewrites(aten.softshrink.default)
def _softshrink(self: Tensor, lambd: Any = 0.5) -> Tensor:
    def shrink(x: Tensor, limit: Tensor) -> Tensor:
        outer = torch.where(x > limit, x - limit, torch.where(x < -limit, x + limit, x))
        return torch.where((x >= -limit) & (x <= limit), 0.0, outer)

    return _computed(shrink, self.dtype, self, lambd)


@rewrites(aten.hardshrink.default)
def _hardshrink(self: Tensor, lambd: Any = 0.5) -> Tensor:
    limit = number(lambd, self)
    return torch.where((self >= -limit) & (self <= limit), 0.0, self)


# ---- tensors of one number ----------------------------------------------------------------------


@rewrites(aten.full.default)
def _full(size: Sequence[Any], fill_value: Any, **options: Any) -> Tensor:
    default = torch.int64 if _is_integer(fill_value) else torch.get_default_dtype()
    options["dtype"] = options.get("dtype") or default
    # One times a number is the number, also where that is a negative zero.
    ones = aten.full.default(size, 1, **options)
    return ones * number(fill_value, ones)


@rewrites(aten.full_like.default)
def _full_like(self: Tensor, fill_value: Any, **options: Any) -> Tensor:
    ones = aten.full_like.default(self, 1, **options)
    return ones * number(fill_value, ones)


@rewrites(aten.new_full.default)
def _new_full(self: Tensor, size: Sequence[Any], fill_value: Any, **options: Any) -> Tensor:
    ones = aten.new_full.default(self, size, 1, **options)
    return ones * number(fill_value, ones)


@rewrites(aten.fill.Scalar)
def _fill(self: Tensor, value: Any) -> Tensor:
    filled: Tensor = aten.fill.Tensor(self, number(value, self))
    return filled


@rewrites(aten.index_fill.int_Scalar)
def _index_fill(self: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    filled: Tensor = aten.index_fill.int_Tensor(self, dim, index, number(value, self))
    return filled
