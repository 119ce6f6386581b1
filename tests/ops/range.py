"""Range."""

from __future__ import annotations

import torch

from .case import Case, case

_STEP = "aten.arange.start_step"


def cases() -> list[Case]:
    return [
        case("aten.arange.default", lambda n: (n,)),
        case("aten.arange.default", lambda n: (n,), dtype=torch.float32, label="-f32"),
        case("aten.arange.default", lambda n: (n,), dtype=torch.bfloat16, label="-bf16"),
        case("aten.arange.default", lambda n: (5.5,), label="-float"),
        case("aten.arange.start", lambda n: (2, n)),
        case("aten.arange.start", lambda n: (n, 2 * n), dtype=torch.int32, label="-i32"),
        case(_STEP, lambda n: (0, 10, 3)),
        case(_STEP, lambda n: (n + 3, 0, -3), label="-down"),
        case(_STEP, lambda n: (0, 3 * n, 3), label="-size"),
        case(_STEP, lambda n: (0.0, 1.0, 0.25), label="-float"),
    ]
