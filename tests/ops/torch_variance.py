"""Variance and standard deviation, which are compositions."""

from __future__ import annotations

import torch

from .case import Case, case, normal


def cases() -> list[Case]:
    result = []
    for name in ("var", "std"):
        plain, pair = f"aten.{name}.correction", f"aten.{name}_mean.correction"
        result += [
            case(plain, lambda n: (normal(n, 3), [0])),
            case(plain, lambda n: (normal(n, 3), [1]), correction=0, keepdim=True),
            case(plain, lambda n: (normal(n, 3),), label="-all"),
            case(plain, lambda n: (normal(2, n, 1, 3, 2), [1, 3]), label="-5d"),
            case(pair, lambda n: (normal(n, 3), [0])),
            case(pair, lambda n: (normal(n, 3), [1]), correction=0, keepdim=True),
        ]
    return [
        *result,
        case("aten.std.correction", lambda n: (torch.ones(n, 3, dtype=torch.float64), [1]),
             label="-constant"),
        case("aten.var.correction", lambda n: (normal(n, 3, dtype=torch.bfloat16), [1]),
             label="-bf16"),
    ]  # fmt: skip
