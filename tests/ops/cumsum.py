"""CumSum."""

from __future__ import annotations

import torch

from .case import Case, case, flags, integers, normal

_CUMSUM = "aten.cumsum.default"


def cases() -> list[Case]:
    return [
        case(_CUMSUM, lambda n: (normal(n, 3), 0)),
        case(_CUMSUM, lambda n: (normal(n, 3), -1), label="-last"),
        case(_CUMSUM, lambda n: (normal(2, n, 1, 3, 2), 1), label="-5d"),
        case(_CUMSUM, lambda n: (flags(n), 0), label="-bool"),
        case(_CUMSUM, lambda n: (integers(5, n, 3), 1), dtype=torch.float64, label="-converted"),
        case(_CUMSUM, lambda n: (normal(), 0), label="-scalar", aten="scalar"),
    ]
