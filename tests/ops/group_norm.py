"""GroupNormalization: as torch calls it, and with its statistics as results."""

from __future__ import annotations

import torch
from torch import Tensor

from .case import Case, case, normal

_NORM = "aten.group_norm.default"
_NATIVE = "aten.native_group_norm.default"
_BF16 = torch.bfloat16


def _channels_last(x: Tensor, *rest: object) -> Tensor:
    return torch.ops.aten.group_norm(x.contiguous(memory_format=torch.channels_last), *rest)


def cases() -> list[Case]:
    return [
        case(_NORM, lambda n: (normal(n, 6, 5), 3, normal(6), normal(6))),
        case(_NORM, lambda n: (normal(2, 4, n, 3), 2), label="-plain"),
        case(_NORM, lambda n: (normal(n, 4, 5, 3), 1, normal(4)), label="-no_bias"),
        case(_NORM, lambda n: (normal(n, 4, 5, 3), 4, None, normal(4)), label="-no_scale"),
        case(_NORM, lambda n: (normal(n, 6), 2, normal(6), normal(6)), label="-2d"),
        case(_NORM, lambda n: (normal(2, 4, n, 2, 3), 2, normal(4), normal(4)), label="-5d"),
        case(_NORM, lambda n: (normal(2, 2, n, 37, 31), 1, normal(2), normal(2)), label="-long"),
        case(_NORM, lambda n: (normal(n, 6, 5, 3), 3, normal(6), normal(6)),
             function=_channels_last, label="-channels_last"),
        case(_NORM, lambda n: (normal(n, 8, 33, 17), 2), function=_channels_last,
             label="-channels_last_large"),
        case(_NORM, lambda n: (normal(n, 4, 3, dtype=_BF16), 2, normal(4, dtype=_BF16),
                               normal(4, dtype=_BF16)), label="-bf16"),
        case(_NATIVE, lambda n: (normal(n, 6, 5), normal(6), normal(6), n, 6, 5, 3, 1e-5)),
        case(_NATIVE, lambda n: (normal(n, 6, 2, 3), None, None, n, 6, 6, 2, 1e-3),
             label="-plain"),
    ]  # fmt: skip
