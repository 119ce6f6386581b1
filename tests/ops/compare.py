"""Comparisons and predicates."""

from __future__ import annotations

import torch

from .case import Case, case, flags, integers, normal


def _comparison(name: str) -> list[Case]:
    tensor, scalar = f"aten.{name}.Tensor", f"aten.{name}.Scalar"
    return [
        case(tensor, lambda n: (integers(3, n), integers(3, n))),
        case(tensor, lambda n: (normal(n, 3), normal(3)), label="-broadcast"),
        case(tensor, lambda n: (integers(3, n), normal(n)), label="-mixed"),
        case(
            tensor,
            lambda n: (normal(n, dtype=torch.bfloat16), torch.tensor(0.1)),
            label="-bf16_scalar",
        ),
        case(scalar, lambda n: (normal(n), 0.1)),
        case(scalar, lambda n: (integers(3, n), 1), label="-integers"),
        case(scalar, lambda n: (integers(3, n), 1.5), label="-promoted"),
        case(scalar, lambda n: (flags(n), 1), label="-bool"),
        case(scalar, lambda n: (integers(15, n), n), label="-size"),
    ]


def _special(n: int) -> torch.Tensor:
    x = normal(n, 3)
    x.view(-1)[::3] = float("nan")
    x.view(-1)[1::3] = float("-inf")
    return x


def cases() -> list[Case]:
    return [
        *(c for name in ("eq", "ne", "lt", "le", "gt", "ge") for c in _comparison(name)),
        case("aten.isnan.default", lambda n: (_special(n),), gradient=False),
        case("aten.isinf.default", lambda n: (_special(n),), gradient=False),
        case("aten.isnan.default", lambda n: (integers(3, n),), label="-integers"),
        case("aten.isinf.default", lambda n: (integers(3, n),), label="-integers"),
        case("aten.isnan.default", lambda n: (flags(n),), label="-bool"),
        case("aten.isinf.default", lambda n: (flags(n),), label="-bool"),
    ]
