"""Values and gradients that torch has changed between versions, and for which the engine has formulas."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, fx
from torch.nn import functional

from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import calls_named, expect

_CLAMPS = {"clamp", "clamp_", "clamp_min", "clamp_min_", "clamp_max", "clamp_max_", "clip", "clip_"}


def _clamps(gm: fx.GraphModule) -> bool:
    return calls_named(gm, _CLAMPS | {"softshrink", "hardtanh", "hardtanh_", "relu6", "hardshrink"})


@expect("clamp", "The gradient of clamp at its bounds is that of eager PyTorch.", needed_by=_clamps)
def _probe_clamp(trial: Trial) -> bool:
    """Torch 2.14 passes no gradient at the bounds, and rounds the bound of a 16-bit softshrink first."""

    def clamped(x: Tensor) -> Tensor:
        shrunk = functional.softshrink(x, 0.3)
        return torch.cat([x.clamp(-0.3, 0.7), shrunk, functional.hardtanh(x, -0.3, 0.7)])

    numbers = torch.tensor([0.3, 0.7, 0.1, -0.3, -0.7, 0.8])
    dtypes = (torch.float32, torch.bfloat16)
    return trial(lambda: clamped, *((numbers.to(dtype).requires_grad_(),) for dtype in dtypes))


def _assigns_data(gm: fx.GraphModule) -> bool:
    return calls_named(gm, {"set_", "set", "shallow_copy_data_", "_set_data"})


@expect("data", "A forward that assigns to `.data` computes with it.", needed_by=_assigns_data)
def _probe_data(trial: Trial) -> bool:
    """Since torch 2.14 Dynamo uses another operator for the assignment."""

    def make() -> Callable[[Tensor], Tensor]:
        weight = torch.tensor([2.0, -3.0], requires_grad=True)

        def product(x: Tensor) -> Tensor:
            weight.data = weight.data.sign() * 2
            return x * weight

        return product

    return trial(make, (torch.ones(2, requires_grad=True),), (torch.ones(2, requires_grad=True),))
