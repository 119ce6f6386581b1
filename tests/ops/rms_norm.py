"""SimplifiedLayerNormalization."""

from __future__ import annotations

import torch

from .case import Case, case, normal

_NORM = "aten.rms_norm.default"
_BF16 = torch.bfloat16


def cases() -> list[Case]:
    return [
        case(_NORM, lambda n: (normal(n, 3), [3], normal(3))),
        case(_NORM, lambda n: (normal(n, 3), [3]), label="-plain"),
        case(_NORM, lambda n: (normal(2, n, 5), [5], normal(5), 1e-2), label="-epsilon"),
        case(_NORM, lambda n: (normal(n, 131), [131], normal(131)), label="-wide"),
        case(_NORM, lambda n: (normal(n, 3, dtype=_BF16), [3], normal(3, dtype=_BF16)),
             label="-bf16"),
        case(_NORM, lambda n: (1e-3 * normal(n, 64, dtype=_BF16), [64]), label="-small-bf16"),
    ]  # fmt: skip
