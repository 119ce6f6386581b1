"""Captures find the sizes of pointwise functions and batch norms without their formulas.

torch runs the formula on fake tensors: some fifteen operators for a batch norm, eight for ReLU6. Where sizes hold
divisions, as behind strided convolutions, that is a third of our trace of a MobileNet, and Dynamo does it once more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch._prims_common import get_computation_dtype
from torch._subclasses.fake_tensor import FakeTensorMode

from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import patch

_Implementation = Callable[..., Any]
aten = torch.ops.aten


class _Calls:
    """Counts the results that are made here."""

    count = 0


def _probe(trial: Trial) -> bool:
    def make() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.BatchNorm2d(3), torch.nn.ReLU6())

    before = _Calls.count
    same = trial(make, (torch.rand(2, 3, 4, 5),), (torch.rand(3, 3, 6, 5),))
    return same and _Calls.count > before + 1


@patch(
    "direct_shapes",
    "Captures of pointwise functions and batch norms with symbolic sizes take less time.",
    "torch._subclasses.fake_tensor:get_fast_op_impls",
    probe=_probe,
    needed_by=None,
)
def _implementations(
    get: Callable[[], Mapping[Any, _Implementation]],
) -> Mapping[Any, _Implementation]:
    return {**get(), **_DIRECT}


# ---- functions of each value --------------------------------------------------------------------


def _pointwise(operator: Any) -> _Implementation:
    def implementation(mode: FakeTensorMode, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        with mode:
            if not x.is_floating_point():
                return decomposition_table[operator](x, *args, **kwargs)
            _Calls.count += 1
            return torch.empty_like(x)

    return implementation


_POINTWISE = (
    aten.abs.default,
    aten.celu.default,
    aten.cos.default,
    aten.elu.default,
    aten.erf.default,
    aten.exp.default,
    aten.gelu.default,
    aten.hardsigmoid.default,
    aten.hardswish.default,
    aten.hardtanh.default,
    aten.leaky_relu.default,
    aten.log.default,
    aten.mish.default,
    aten.neg.default,
    aten.reciprocal.default,
    aten.relu.default,
    aten.rsqrt.default,
    aten.sigmoid.default,
    aten.silu.default,
    aten.sin.default,
    aten.softplus.default,
    aten.sqrt.default,
    aten.tanh.default,
)


# ---- batch norms --------------------------------------------------------------------------------


def _batch_norm(operator: Any) -> _Implementation:
    names = [argument.name for argument in operator._schema.arguments]
    returns = len(operator._schema.returns)

    def implementation(mode: FakeTensorMode, *args: Any, **kwargs: Any) -> Any:
        given = dict(zip(names, args, strict=False)) | kwargs
        training = given.get("training", False)
        running = [given.get(name) for name in ("running_mean", "running_var")]
        with mode:
            if not _is_plain(given, running, training):
                return decomposition_table[operator](*args, **kwargs)
            _Calls.count += 1
            return _normalized(given["input"], running, training)[:returns]

    return implementation


def _normalized(x: Tensor, running: list[Tensor | None], training: bool) -> tuple[Tensor, ...]:
    """Fake results and new running statistics, with the dtypes of torch's formula."""
    computed_in = get_computation_dtype(x.dtype)
    on_cpu = x.device.type == "cpu"
    channels = x.shape[1] if training or not on_cpu else 0
    saved = [x.new_empty((channels,), dtype=x.dtype if on_cpu else computed_in) for _ in range(2)]
    updated = [_updated(value, training, computed_in) for value in running if value is not None]
    return torch.empty_like(x), *saved, *updated


def _updated(value: Tensor, training: bool, computed_in: torch.dtype) -> Tensor:
    dtype = torch.promote_types(computed_in, value.dtype) if training else computed_in
    return value.new_empty(value.shape, dtype=dtype)


def _is_plain(given: Mapping[str, Any], running: list[Tensor | None], training: bool) -> bool:
    """Whether no check of the formula can fail, nor put a guard on a size."""
    x: Tensor = given["input"]
    if not x.is_floating_point() or x.dim() < 2 or not isinstance(x.shape[1], int):
        return False
    if not training and any(value is None for value in running):
        return False
    parameters = [given.get("weight"), given.get("bias"), *running]
    return all(
        value.dim() == 1
        and value.device == x.device
        and isinstance(value.shape[0], int)
        and value.shape[0] == x.shape[1]
        for value in parameters
        if value is not None
    )


_DIRECT = {
    **{operator: _pointwise(operator) for operator in _POINTWISE},
    **{
        operator: _batch_norm(operator)
        for operator in (
            aten._native_batch_norm_legit.default,
            aten._native_batch_norm_legit.no_stats,
            aten._native_batch_norm_legit_functional.default,
            aten._native_batch_norm_legit_no_training.default,
        )
    },
}
