"""ReduceL2 and sums of sizes: norms of vectors."""

from __future__ import annotations

import torch

from .case import Case, case, normal

_NORM = "aten.linalg_vector_norm.default"


def cases() -> list[Case]:
    return [
        case(_NORM, lambda n: (normal(n, 3),)),
        case(_NORM, lambda n: (normal(n, 3), 2, [1])),
        case(_NORM, lambda n: (normal(2, n, 3), 2, [0, 2], True), label="-keep"),
        case(_NORM, lambda n: (normal(n, 3) * 0, 2, [1]), label="-zeros"),
        case(_NORM, lambda n: (normal(),), label="-scalar", aten="a scalar"),
        case(
            _NORM,
            lambda n: (normal(n, 3, dtype=torch.bfloat16), 2, [1]),
            dtype=torch.float32,
            label="-widened",
        ),
        case(_NORM, lambda n: (normal(n, 3), 1, [1])),
        case(_NORM, lambda n: (normal(n, 3), 3, [1]), label="-cubes", aten="a norm of order 3"),
    ]
