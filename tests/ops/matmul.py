"""Matrix products."""

from __future__ import annotations

import torch
from torch import Tensor

from .case import Case, case, integers, normal

_MATMUL = "aten.matmul.default"
_LINEAR = "aten.linear.default"
_BADDBMM = "aten.baddbmm.default"
_ROUNDED_TWICE = "16 bits"
_SUMMED_BY_THE_PRODUCT = ("cuda", "float32", "float16", "bfloat16")


def _scaled_transposed(a: Tensor, b: Tensor) -> Tensor:
    return torch.matmul(a, b.transpose(-1, -2)) * 0.25


def _matmuls() -> list[Case]:
    shapes = [
        lambda n: (normal(n, 3), normal(3, 5)),
        lambda n: (normal(2, n, 3), normal(3, 5)),
        lambda n: (normal(2, n, 3), normal(2, 3, n)),
        lambda n: (normal(4, 2, n, 3), normal(2, 3, 5)),
        lambda n: (normal(4, 1, n, 3), normal(2, 3, 5)),
        # Tiny matrices, of which either factor is repeated, as in routing between capsules.
        lambda n: (normal(1, 2, 3, 4, 2), normal(n, 2, 1, 2, 1)),
        lambda n: (normal(2, 3, 2, n, 3), normal(2, 3, 2, 3, 1)),
        lambda n: (normal(3), normal(3, 5)),
        lambda n: (normal(2, n, 3), normal(3)),
        lambda n: (normal(n), normal(n)),
        lambda n: (normal(n, 3), normal(2, 3, 5)),
        lambda n: (normal(3), normal(2, 3, 5)),
        lambda n: (normal(1, 1), normal(1, n)),
        lambda n: (normal(17, n), normal(n, 13)),
        lambda n: (integers(5, n, 3), integers(5, 3, 2)),
    ]
    return [case(_MATMUL, build) for build in shapes]


def cases() -> list[Case]:
    return [
        *_matmuls(),
        case(
            _MATMUL,
            lambda n: (normal(2, 3, n, 4), normal(2, 3, n, 4)),
            function=_scaled_transposed,
            contains="FusedMatMul",
            label="-fused",
        ),
        case(
            _LINEAR,
            lambda n: (normal(n, 3), normal(5, 3), normal(5)),
            contains="WeightBiasGrad",
            contains_on=_SUMMED_BY_THE_PRODUCT,
        ),
        case(_LINEAR, lambda n: (normal(n, 3), normal(5, 3)), label="-no_bias"),
        case(
            _LINEAR,
            lambda n: (normal(2, n, 3), normal(5, 3), normal(5)),
            contains="WeightBiasGrad",
            contains_on=_SUMMED_BY_THE_PRODUCT,
            label="-3d",
        ),
        case(_LINEAR, lambda n: (normal(2, 2, n, 3), normal(5, 3)), label="-4d"),
        case(_LINEAR, lambda n: (normal(3), normal(5, 3), normal(5)), label="-1d"),
        # Too large for the kernels that call BLAS directly.
        case(_LINEAR, lambda n: (normal(n, 1024), normal(1024, 1024)), label="-large"),
        case(_MATMUL, lambda n: (normal(2, n, 1024), normal(1024, 512)), label="-large"),
        case("aten.mm.default", lambda n: (normal(n, 3), normal(3, 5))),
        case("aten.bmm.default", lambda n: (normal(n, 2, 3), normal(n, 3, 5))),
        case("aten.mv.default", lambda n: (normal(n, 3), normal(3))),
        case("aten.dot.default", lambda n: (normal(n), normal(n))),
        case("aten.addmv.default", lambda n: (normal(n), normal(n, 3), normal(3))),
        case(
            _BADDBMM,
            lambda n: (normal(n, 2, 5), normal(n, 2, 3), normal(n, 3, 5)),
            aten=_ROUNDED_TWICE,
        ),
        case(
            _BADDBMM,
            lambda n: (normal(1, 2, 5), normal(n, 2, 3), normal(n, 3, 5)),
            beta=0.5,
            alpha=2,
            label="-scaled",
            aten=_ROUNDED_TWICE,
        ),
        case(
            _BADDBMM,
            lambda n: (normal(n, 2, 5), normal(n, 2, 3), normal(n, 3, 5)),
            beta=0,
            alpha=0.3,
            label="-beta0",
            aten="beta = 0",
        ),
    ]
