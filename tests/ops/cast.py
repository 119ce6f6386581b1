"""Cast."""

from __future__ import annotations

import torch

from .case import Case, case, flags, integers, normal

_TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32,
          torch.bool)  # fmt: skip


def cases() -> list[Case]:
    result = []
    for dtype in _TYPES:
        label = f"-{str(dtype).removeprefix('torch.')}"
        result += [
            case("aten._to_copy.default", lambda n: (normal(n, 3),), dtype=dtype, label=label),
            case("aten.to.dtype", lambda n, d=dtype: (3 * normal(n, 3), d), label=label),
            case("aten.to.dtype", lambda n, d=dtype: (integers(5, n), d), label=f"{label}-int"),
            case("aten.to.dtype", lambda n, d=dtype: (flags(n), d), label=f"{label}-bool"),
        ]
    return [
        *result,
        case("aten.type_as.default", lambda n: (normal(n), normal(3, dtype=torch.float32))),
        case("aten.to.other", lambda n: (integers(5, n), normal(3))),
        case("aten.to.dtype_layout", lambda n: (normal(n, 3),), dtype=torch.float32),
        case("aten._to_copy.default", lambda n: (normal(2, n, 1, 3, 2),), dtype=torch.float32,
             label="-5d"),
    ]  # fmt: skip
