"""Captures `F.interpolate(x, scale_factor=1.7)` once for all sizes.

Torch rounds the sizes of the result inside of the operator, which the engine has no form for, so that each size
would be a capture. Here they are computed in front of it, as `int(1.7 * n)` of a program (`rounded_sizes`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.variables import ConstantVariable, TensorVariable, UserFunctionVariable
from torch.nn import functional

from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import patch

_ARGUMENTS = (
    *("input", "size", "scale_factor", "mode"),
    *("align_corners", "recompute_scale_factor", "antialias"),
)
_aten = torch.ops.aten
_NEAREST = {
    ("nearest", 1): _aten.upsample_nearest1d,
    ("nearest", 2): _aten.upsample_nearest2d,
    ("nearest", 3): _aten.upsample_nearest3d,
    ("nearest-exact", 1): _aten._upsample_nearest_exact1d,
    ("nearest-exact", 2): _aten._upsample_nearest_exact2d,
    ("nearest-exact", 3): _aten._upsample_nearest_exact3d,
}
_LINEAR = {
    ("linear", 1): _aten.upsample_linear1d,
    ("bilinear", 2): _aten.upsample_bilinear2d,
    ("trilinear", 3): _aten.upsample_trilinear3d,
    ("bicubic", 2): _aten.upsample_bicubic2d,
}
_SMOOTHED = {
    ("bilinear", 2): _aten._upsample_bilinear2d_aa,
    ("bicubic", 2): _aten._upsample_bicubic2d_aa,
}


def _sizes(x: Tensor, factors: Sequence[float]) -> list[int]:
    return [int(n * factor) for n, factor in zip(x.shape[2:], factors, strict=True)]


def _probe(trial: Trial) -> bool:
    def scaled(x: Tensor) -> Tensor:
        return functional.interpolate(x.reshape(1, 1, -1), scale_factor=1.7)

    given = ((torch.arange(n, dtype=torch.float32),) for n in (7, 10, 13))
    return trial(lambda: scaled, *given) and trial.captures == 1


@patch(
    "scaled images",
    "`F.interpolate` by a factor such as 1.7 needs no new capture for other sizes.",
    {(2, 13): "torch._dynamo.variables.torch:TorchInGraphFunctionVariable.call_function"},
    probe=_probe,
    needed_by=None,
)
def _call(call: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    if self.value is not functional.interpolate:
        return call(self, tx, args, kwargs)
    given = dict(zip(_ARGUMENTS, args, strict=False)) | kwargs
    x = given.pop("input").realize()
    options = {name: value.realize() for name, value in given.items()}
    if not isinstance(x, TensorVariable) or not all(
        value.is_python_constant() for value in options.values()
    ):
        return call(self, tx, args, kwargs)
    known = {name: value.as_python_constant() for name, value in options.items()}
    factors = _rounding_factors(x, known)
    if factors is None:
        return call(self, tx, args, kwargs)
    constants = [ConstantVariable.create(factor) for factor in factors]
    packed = torch._dynamo.variables.TupleVariable(constants)
    sizes = UserFunctionVariable(_sizes).call_function(tx, [x, packed], {})
    operator = _operator(known, len(factors))
    if operator is None:  # eager takes the sizes alone
        for name in ("scale_factor", "recompute_scale_factor"):
            options.pop(name, None)
        return call(self, tx, [x], {**options, "size": sizes})
    aligned = [ConstantVariable.create(bool(known.get("align_corners")))]
    linear = operator not in _NEAREST.values()
    operands = [x, sizes, *(aligned if linear else []), *constants]
    result = call(type(self)(operator.default), tx, operands, {})
    # Row-major in eager, whatever the operand is.
    return result.call_method(tx, "contiguous", [], {}) if len(factors) == 1 else result


def _rounding_factors(x: Any, known: dict[str, Any]) -> list[float] | None:
    """A factor for each size, where one rounds a size that changes."""
    factor, shape = known.get("scale_factor"), x.as_proxy().node.meta["example_value"].shape[2:]
    if factor is None or known.get("size") is not None or _is_error(known, len(shape)):
        return None
    factors = list(factor) if isinstance(factor, (list, tuple)) else [factor] * len(shape)
    if len(factors) != len(shape) or not shape:
        return None
    rounds = any(
        isinstance(size, torch.SymInt) and not float(factor).is_integer()
        for size, factor in zip(shape, factors, strict=True)
    )
    return [float(factor) for factor in factors] if rounds else None


def _is_error(known: dict[str, Any], dims: int) -> bool:
    mode = known.get("mode", "nearest")
    aligned = known.get("align_corners") is not None and (mode, dims) not in _LINEAR
    return aligned or (bool(known.get("antialias")) and (mode, dims) not in _SMOOTHED)


def _operator(known: dict[str, Any], dims: int) -> Any | None:
    """The operator that takes sizes and factors; None where eager computes other factors of the sizes."""
    mode = known.get("mode", "nearest")
    if known.get("recompute_scale_factor"):
        return None
    if known.get("antialias"):
        return _SMOOTHED[mode, dims]
    return _NEAREST.get((mode, dims)) or _LINEAR.get((mode, dims))
