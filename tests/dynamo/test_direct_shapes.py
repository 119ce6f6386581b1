"""Pointwise functions and batch norms: fake results made directly are those of eager and of torch's formulas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
)

from ortmodule_py.dynamo.patches import direct_shapes as row

LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "row-major": lambda x: x,
    "channels-last": lambda x: x.to(memory_format=torch.channels_last),
    "transposed": lambda x: x.transpose(1, 3),
    "every second": lambda x: x[..., ::2],
    "expanded": lambda x: x[:1].expand(3, -1, -1, -1),
}
BATCH_NORMS = [op for op in row._DIRECT if op not in row._POINTWISE]


def _fake(mode: FakeTensorMode, value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    if value.dim() < 2:
        return mode.from_tensor(value, static_shapes=True)
    sizes = [DimDynamic.STATIC if d == 1 else DimDynamic.DYNAMIC for d in range(value.dim())]
    context = StatelessSymbolicContext(sizes)  # type: ignore[call-arg]
    return mode.from_tensor(value, symbolic_context=context, source=ConstantSource("x"))


def _facts(value: Any, with_strides: bool = True) -> Any:
    if not isinstance(value, Tensor):
        return [_facts(part, with_strides) for part in value]
    sizes = tuple(int(size) for size in value.shape)
    strides = tuple(int(stride) for stride in value.stride()) if with_strides else None
    return sizes, strides, value.dtype, value.device.type


def _counted(operator: Any, mode: FakeTensorMode, args: Any) -> Any:
    before = row._Calls.count
    with torch.no_grad():
        result = row._DIRECT[operator](mode, *args)
    return result, row._Calls.count - before


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("operator", row._POINTWISE, ids=str)
def test_pointwise_functions_are_like_their_operand(operator: Any, layout: str) -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        x = LAYOUTS[layout](torch.rand(2, 3, 4, 6).to(dtype))
        mode = FakeTensorMode(shape_env=ShapeEnv())
        result, count = _counted(operator, mode, [_fake(mode, x)])
        assert count == 1
        assert _facts(result) == _facts(operator(x))


def test_integers_are_left_to_the_formula() -> None:
    x = torch.arange(12).reshape(3, 4)
    mode = FakeTensorMode(shape_env=ShapeEnv())
    result, count = _counted(torch.ops.aten.exp.default, mode, [_fake(mode, x)])
    assert count == 0
    assert result.dtype == torch.float32


def _operands(operator: Any, x: Tensor, dtype: torch.dtype, training: bool) -> list[Any]:
    of_channels = torch.rand(x.shape[1]).to(dtype)
    values = {"input": x, "training": training, "momentum": 0.1, "eps": 1e-5}
    return [values.get(argument.name, of_channels) for argument in operator._schema.arguments]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("operator", BATCH_NORMS, ids=str)
def test_batch_norms_are_as_by_the_formula(operator: Any, training: bool, layout: str) -> None:
    if operator is torch.ops.aten._native_batch_norm_legit.no_stats:
        training = True
    for dtype, parameters in (
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.bfloat16, torch.bfloat16),
        (torch.float32, torch.float64),
    ):
        x = LAYOUTS[layout](torch.rand(2, 3, 4, 6).to(dtype))
        found = []
        for direct in (True, False):
            mode = FakeTensorMode(shape_env=ShapeEnv())
            args = [_fake(mode, arg) for arg in _operands(operator, x, parameters, training)]
            if direct:
                result, count = _counted(operator, mode, args)
                assert count == 1
            else:
                with mode, torch.no_grad():
                    result = decomposition_table[operator](*args)
            found.append([_facts(part, part is not result[0]) for part in result])
        assert found[0] == found[1]


def test_sizes_that_differ_are_left_to_the_formula() -> None:
    operator = torch.ops.aten._native_batch_norm_legit.default
    x = torch.rand(2, 3, 4, 6)
    names = [argument.name for argument in operator._schema.arguments]
    operands = dict(zip(names, _operands(operator, x, x.dtype, True), strict=True))
    mode = FakeTensorMode(shape_env=ShapeEnv())
    with pytest.raises(RuntimeError, match="size"):
        _counted(
            operator,
            mode,
            [_fake(mode, v) for v in (operands | {"weight": torch.ones(4)}).values()],
        )
    mode = FakeTensorMode(shape_env=ShapeEnv())
    spread = operands | {"bias": torch.ones(1)}
    result, count = _counted(operator, mode, [_fake(mode, value) for value in spread.values()])
    assert count == 0
    assert _facts(result[0], False) == _facts(x, False)
