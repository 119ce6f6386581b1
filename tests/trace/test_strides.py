"""Strides of results as eager makes them, for operands laid out in any way, but for dimensions of size 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings, strategies as st
from torch import Tensor, nn
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode

from ortmodule_py import ORTModule, last_run_report
from ortmodule_py.trace import record

aten = torch.ops.aten
TENSORS = (
    aten.exp.default,
    aten.gelu.default,
    aten.hardtanh.default,
    aten.isnan.default,
    aten.nan_to_num.default,
    aten.add.Tensor,
    aten.copysign.Tensor,
    aten.div.Tensor,
    aten.gt.Tensor,
    aten.logical_and.default,
    aten.masked_fill.Scalar,
    aten.maximum.default,
    aten.rsub.Tensor,
    aten.threshold_backward.default,
    aten.xlogy.Tensor,
    aten.addcmul.default,
    aten.lerp.Tensor,
    aten.where.self,
)
NUMBERS = (
    aten.add.Tensor,
    aten.clamp_min.default,
    aten.eq.Scalar,
    aten.leaky_relu.default,
    aten.mul.Scalar,
    aten.pow.Tensor_Scalar,
    aten.rsub.Scalar,
    aten.lerp.Scalar,
    aten.threshold_backward.default,
)
FLOATS = st.sampled_from([torch.float32, torch.float32, torch.float64])


@st.composite
def laid_out(draw: st.DrawFn, sizes: list[int], dtype: torch.dtype) -> Tensor:
    """Permuted, with gaps, expanded, with any strides where the size is 1."""
    strides, step = [0] * len(sizes), 1
    for d in draw(st.permutations(range(len(sizes)))):
        strides[d] = 0 if draw(st.integers(0, 9)) == 0 else step
        step *= sizes[d] * draw(st.sampled_from([1, 1, 1, 2]))
        if sizes[d] == 1 and draw(st.booleans()):
            strides[d] = draw(st.integers(1, 24))
    return torch.empty_strided(sizes, strides, dtype=dtype)


@st.composite
def calls(draw: st.DrawFn) -> tuple[Any, list[Any]]:
    """An operator and its arguments, the second one often broadcast."""
    func = draw(st.sampled_from(TENSORS + NUMBERS))
    count = sum(isinstance(a.type, torch.TensorType) for a in func._schema.arguments)
    with_number = func in NUMBERS and (func not in TENSORS or draw(st.booleans()))
    if func is aten.add.Tensor and with_number:
        count = 1
    sizes = draw(st.lists(st.sampled_from([1, 1, 2, 3, 4]), min_size=1, max_size=5))
    one_dtype = (
        draw(FLOATS) if count > 2 or "backward" in str(func) or "lerp" in str(func) else None
    )
    arguments: list[Any] = []
    for i in range(count):
        own = [1 if i and draw(st.integers(0, 3)) == 0 else size for size in sizes]
        own = own[1:] if i and len(own) > 1 and draw(st.booleans()) else own
        if "threshold" in str(func):
            own = sizes
        is_mask = (func, i) in ((aten.where.self, 0), (aten.masked_fill.Scalar, 1))
        dtype = torch.bool if is_mask else one_dtype or draw(FLOATS)
        arguments.append(draw(laid_out(own, dtype)))
    takes_number = with_number or func in (
        aten.threshold_backward.default,
        aten.masked_fill.Scalar,
    )
    return func, [*arguments, 0.5] if takes_number else arguments


def _steps(value: Tensor) -> list[int]:
    """The strides that tell where elements lie."""
    return [stride for stride, size in zip(value.stride(), value.shape, strict=True) if size != 1]


def _fake_result(function: Callable[..., Tensor], arguments: list[Any]) -> Tensor:
    fake_mode = FakeTensorMode()
    fakes = [fake_mode.from_tensor(x) if isinstance(x, Tensor) else x for x in arguments]
    with record.eager_strides(fake_mode), fake_mode, enable_python_dispatcher():
        return function(*fakes)


@pytest.mark.slow
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(calls())
def test_strides_of_pointwise_results(call: tuple[Any, list[Any]]) -> None:
    func, arguments = call
    got, want = _fake_result(func, arguments), func(*arguments)
    assert _steps(got) == _steps(want), (func, [(x.shape, x.stride()) for x in arguments[:2]])


OTHERS: dict[str, Callable[[Tensor], Tensor]] = {
    "clone": torch.clone,
    "double": Tensor.double,
    "dropout": lambda x: F.dropout(x, 0.5),
    "flatten": lambda x: x.flatten(0, 1),
    "flip": lambda x: x.flip(-1),
    "group_norm": lambda x: torch.group_norm(x, 1),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "log_sigmoid": F.logsigmoid,
    "log_softmax": lambda x: x.log_softmax(0),
    "power of a number": lambda x: 2.0**x,
    "roll": lambda x: x.roll(1, 0),
    "softmax": lambda x: x.softmax(-1),
    "sort": lambda x: x.sort(0)[0],
    "sum": lambda x: x.sum(-1, keepdim=True),
    "tril": torch.tril,
    "as integers": lambda x: x.view(torch.int32),
    "view": lambda x: x.view(1, *x.shape[:-1], 1, x.shape[-1]),
    "without 1": lambda x: x.reshape([size for size in x.shape if size != 1]),
    "zeros_like": torch.zeros_like,
}


@pytest.mark.slow
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_strides_of_other_results(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(OTHERS)))
    sizes = data.draw(st.lists(st.sampled_from([1, 1, 2, 3, 4]), min_size=2, max_size=5))
    x = data.draw(laid_out(sizes, torch.float32))
    got, want = _fake_result(OTHERS[name], [x]), OTHERS[name](x)
    assert _steps(got) == _steps(want), (name, x.shape, x.stride())


class Broadcasts(nn.Module):
    """Sizes of 1 between operands of different layouts; the batch becomes symbolic."""

    def forward(self, x: Tensor, y: Tensor) -> list[Tensor]:
        a = x.transpose(0, 2) + y  # both without a size at dim 1
        b = torch.copysign(x, y.transpose(0, 2))
        return [a, a * 2, a.exp() + a.new_ones(()), b, torch.where(b > 0, b, y.transpose(0, 2))]


@pytest.mark.parametrize("batches", [(4, 3, 5), (1, 2)])
def test_strides_of_broadcast_operands(batches: tuple[int, ...]) -> None:
    model = ORTModule(Broadcasts())
    for batch in batches:
        x = torch.randn(batch, 6, 1).transpose(1, 2)
        y = torch.randn(1, 6, batch).transpose(0, 1)
        want = Broadcasts()(x, y)
        for out, expected in zip(model(x, y), want, strict=True):
            assert _steps(out) == _steps(expected)
            torch.testing.assert_close(out, expected)
    assert last_run_report(model)["compiled"]
