"""Gemm."""

from __future__ import annotations

from .case import Case, case, normal

_ADDMM = "aten.addmm.default"


def cases() -> list[Case]:
    return [
        case(
            _ADDMM,
            lambda n: (normal(5), normal(n, 3), normal(3, 5)),
            contains="WeightBiasGradTransposed",
            contains_on=("cuda", "float32", "float16", "bfloat16"),
        ),
        case(_ADDMM, lambda n: (normal(n, 1), normal(n, 3), normal(3, 5)), label="-column"),
        case(_ADDMM, lambda n: (normal(n, 5), normal(n, 3), normal(3, 5)), beta=0.5, alpha=2),
        # Too large for the kernel that calls BLAS directly.
        case(_ADDMM, lambda n: (normal(1024), normal(n, 1024), normal(1024, 1024)), label="-large"),
        case(
            _ADDMM,
            lambda n: (normal(5), normal(n, 3), normal(3, 5)),
            beta=0,
            label="-beta0",
            aten="beta = 0",
        ),
    ]
