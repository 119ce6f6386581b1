"""16-bit results and gradients bit for bit: where eager rounds, and that it computes in float32.

The tolerances of the data files are relative to the largest element, so that they do not see a
number that was rounded too early, nor a small result that became zero.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from . import harness
from .case import Case

_HALF, _BF16 = torch.float16, torch.bfloat16


def _filled(value: float, dtype: torch.dtype, *sizes: int) -> Tensor:
    return torch.full(sizes or (3,), value, dtype=dtype)


def _check(
    function: Callable[..., Any],
    *tensors: Tensor,
    slope: float = 1.0,
    gradient: bool = True,
    nodes_aten: int = 0,
) -> None:
    """Outputs and gradients equal eager's, NaN included; the gradients that arrive are `slope`."""
    case = Case("", lambda _: tensors, function=function, gradient=gradient)
    arguments = harness.with_leaves(case, harness.Arguments.of(case, harness.SIZE))
    compiled = harness.compile_fixed(case, arguments)
    assert compiled.piece.facts()["nodes_aten"] == nodes_aten
    mine_there = harness.on_device(arguments)
    there, theirs = compiled.run(mine_there, harness.SIZE), arguments.call(function)
    given = [torch.full_like(y, slope) for y in theirs if y.requires_grad]
    grads = harness.gradients(there, mine_there, [g.to(harness.DEVICE) for g in given])
    mine = harness.on_cpu([*there, *grads])
    theirs += harness.gradients(theirs, arguments, given)
    for ours, expected in zip(mine, theirs, strict=True):
        torch.testing.assert_close(ours, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("mode", [None, "floor", "trunc"])
@pytest.mark.parametrize(
    "other", [torch.tensor(1e5), torch.tensor(100_000), torch.tensor(0.3, dtype=torch.float64)]
)
@pytest.mark.parametrize("dtype", [_HALF, _BF16])
def test_a_wider_divisor_without_dims_is_not_rounded(
    dtype: torch.dtype, other: Tensor, mode: str | None
) -> None:
    def divide(x: Tensor, y: Tensor) -> Tensor:
        return torch.div(x, y.detach(), rounding_mode=mode)

    _check(divide, _filled(200.0, dtype), other)


@pytest.mark.parametrize("dtype", [_HALF, _BF16])
@pytest.mark.parametrize(("value", "factor"), [(3.0, 1.3), (1e-4, 1e5), (200.0, 0.3)])
def test_a_wider_factor_without_dims_is_not_rounded(
    value: float, factor: float, dtype: torch.dtype
) -> None:
    operands = _filled(value, dtype), torch.tensor(factor)
    _check(lambda x, y: x * y.detach(), *operands)
    _check(torch.floor_divide, *operands, gradient=False)


def test_a_number_divides_unrounded_before_it_is_truncated() -> None:
    _check(lambda x: torch.div(x, 0.3, rounding_mode="trunc"), _filled(200.0, _BF16))


def test_a_first_operand_without_dims_is_rounded() -> None:
    _check(torch.mul, torch.tensor(1.003), _filled(3.0, _BF16))
    _check(torch.div, torch.tensor(1.003), _filled(3.0, _BF16))


@pytest.mark.parametrize("exponent", [2.2, 2.999, 2.001, 0.501, -0.501, -1.7, -2.001])
@pytest.mark.parametrize("dtype", [_HALF, _BF16])
def test_an_exponent_is_rounded(exponent: float, dtype: torch.dtype) -> None:
    _check(lambda x: x**exponent, _filled(0.01, dtype), gradient=False)
    _check(lambda x: x**exponent, _filled(-2.0, dtype), gradient=False)


def test_a_rounded_exponent_gives_the_gradient() -> None:
    # 3 and 2 in bfloat16; eager multiplies by the number itself, which rounds to the same here.
    for exponent in (2.9995, 2.0005):
        _check(lambda x, e=exponent: x**e, _filled(-2.0, _BF16))


def test_the_base_of_a_power_is_rounded() -> None:
    _check(lambda x: torch.pow(2.203, x), _filled(9.0, _BF16), gradient=False)
    _check(lambda x: torch.pow(1e5, x), _filled(0.5, _HALF), gradient=False)


def test_gradient_of_a_small_divisor_overflows_where_it_does_in_eager() -> None:
    def divide(x: Tensor, y: Tensor) -> Tensor:
        return x.detach() / y

    _check(divide, _filled(1e-5, _HALF), _filled(1e-3, _HALF), slope=1000.0)
    _check(divide, _filled(1.0, _HALF), _filled(1e-3, _HALF))


@pytest.mark.parametrize("dtype", [_HALF, _BF16])
def test_a_scaled_product_is_added_in_float32(dtype: torch.dtype) -> None:
    operands = [_filled(value, dtype) for value in (0.3, 300.0, 301.0)]
    _check(lambda s, a, b: torch.addcmul(s, a, b, value=1e-3), *operands, gradient=False)
    _check(lambda s, a, b: torch.addcdiv(s, a, b, value=1e3), *operands, gradient=False)
    operands = [_filled(value, dtype) for value in (0.5, 300.0, 2e-3)]
    _check(lambda s, a, b: torch.addcdiv(s, a, b, value=1e-2), *operands, gradient=False)


def test_the_factor_of_a_product_belongs_inside_of_it() -> None:
    self, left, right = (
        _filled(4.0, _HALF, 1),
        _filled(300.0, _HALF, 1, 4),
        _filled(300.0, _HALF, 4),
    )
    # Powers of two: eager rounds the factors of addmv alone.
    _check(lambda s, a, b: torch.addmv(s, a, b, alpha=2**-10), self, left, right)
    _check(lambda s, a, b: torch.addmv(s, a, b, beta=0.25, alpha=2**-10), self, left, right)
    batched = self[None, None], left[None], right[None, :, None]
    _check(lambda s, a, b: torch.baddbmm(s, a, b, alpha=1e-3), *batched, nodes_aten=1)
    _check(lambda s, a, b: torch.baddbmm(s, a, b, beta=0.3, alpha=1e-3), *batched, nodes_aten=1)


@pytest.mark.parametrize("sizes", [(64,), (8, 64), (2, 8, 64), (2, 2, 2, 64)])
def test_a_bias_is_added_before_the_product_is_rounded(sizes: tuple[int, ...]) -> None:
    x = _filled(36.0, _HALF, *sizes)
    weight, bias = _filled(32.0, _HALF, 64, 64), _filled(-20000.0, _HALF, 64)
    _check(torch.nn.functional.linear, x, weight, bias)  # 73728 - 20000
    _check(lambda x, w, b: torch.nn.functional.linear(x, w[:1], b[:1]), x, weight, bias)


def test_a_sum_is_added_before_the_product_is_rounded() -> None:
    self, left, right = (
        _filled(-20000.0, _HALF, 4),
        _filled(32.0, _HALF, 4, 64),
        _filled(36.0, _HALF, 64),
    )
    _check(torch.addmv, self, left, right)
    _check(torch.addmv, self[:1], left, right)
    _check(torch.addmv, self[0], left, right)
    batched = self[None, :, None], left[None], right[None, :, None]
    _check(torch.baddbmm, *batched, nodes_aten=1)


@pytest.mark.parametrize("dtype", [_HALF, _BF16])
def test_a_scaled_operand_is_added_in_float32(dtype: torch.dtype) -> None:
    # 64 elements: eager on the CPU rounds twice where they do not fill a vector.
    operands = _filled(6e4, dtype, 64), _filled(4e4, dtype, 64)
    _check(lambda x, y: torch.sub(x, y, alpha=2), *operands)
    _check(lambda x, y: torch.rsub(y, x, alpha=2), *operands)
    _check(lambda x, y: torch.add(x, y, alpha=-2), *operands)
    _check(lambda x: torch.sub(x, 39936, alpha=2), operands[0])
    near = _filled(1.0, dtype, 64), _filled(1.0078125, dtype, 64)
    _check(lambda x, y: torch.sub(x, y, alpha=1.25), *near)


def test_given_statistics_normalize_in_float32() -> None:
    # epsilon is 0 in 16 bits, and so is the variance
    x, one, zero = (_filled(value, _HALF, 8, 4) for value in (1.0, 1.0, 0.0))

    def normalize(x: Tensor, one: Tensor, zero: Tensor) -> Tensor:
        mean, var = one[0].detach(), zero[0].detach()
        return torch.nn.functional.batch_norm(x, mean, var, one[0], zero[0], eps=1e-8)

    _check(normalize, x, one, zero, gradient=False)


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_the_square_of_a_smooth_loss_may_exceed_its_type(reduction: str) -> None:
    x, target = _filled(300.0, _HALF, 64), _filled(0.0, _HALF, 64)  # 300 * 300 / 2 = 45000
    functional = torch.nn.functional
    _check(lambda x, y: functional.huber_loss(x, y, reduction, delta=1000.0), x, target)
    _check(
        lambda x, y: functional.smooth_l1_loss(x, y, reduction=reduction, beta=1000.0), x, target
    )


def test_a_size_is_compared_as_a_rounded_element() -> None:
    def compare(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x < y.shape[0], x == y.shape[0], torch.remainder(x, y.shape[0])

    case = Case(  # 257 becomes 256
        "aten.lt.Tensor",
        lambda n: (torch.tensor([255.0, 256.0, 258.0], dtype=_BF16), torch.ones(n + 250)),
        function=compare,
        gradient=False,
    )
    here, there = (harness.Arguments.of(case, n) for n in (harness.SIZE, harness.OTHER_SIZE))
    compiled = harness.compile_symbolic(case, here, there)
    assert compiled.piece.facts()["nodes_aten"] == 0
    for arguments, n in ((here, harness.SIZE), (there, harness.OTHER_SIZE)):
        mine = harness.on_cpu(compiled.run(harness.on_device(arguments), n))
        for ours, expected in zip(mine, arguments.call(compare), strict=True):
            torch.testing.assert_close(ours, expected, rtol=0, atol=0)
