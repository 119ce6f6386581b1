"""ConstantOfShape."""

from __future__ import annotations

import torch

from .case import Case, Outcome, case, integers, normal


def _anything(outcome: Outcome) -> None:
    """An empty tensor may hold anything."""


def cases() -> list[Case]:
    empty = {"check": _anything}
    return [
        case("aten.full.default", lambda n: ([n, 3], 2.5)),
        case("aten.full.default", lambda n: ([n], True), label="-bool"),
        case("aten.full.default", lambda n: ([], float("-inf")), label="-scalar"),
        case("aten.full.default", lambda n: ([n], n), label="-size"),
        case("aten.full.default", lambda n: ([n], 1.5), dtype=torch.bfloat16, label="-bf16"),
        case("aten.full_like.default", lambda n: (normal(n, 3), 1.0)),
        case("aten.zeros.default", lambda n: ([n, 3],)),
        case("aten.ones.default", lambda n: ([n, 3],), dtype=torch.int32),
        case("aten.zeros_like.default", lambda n: (integers(3, n),)),
        case("aten.ones_like.default", lambda n: (normal(n, 3),), dtype=torch.int64),
        case("aten.new_zeros.default", lambda n: (normal(n), [3])),
        case("aten.new_ones.default", lambda n: (normal(3), [n, 2])),
        case("aten.new_full.default", lambda n: (normal(n), [3], 2.0)),
        case("aten.scalar_tensor.default", lambda n: (3.0,)),
        case("aten.fill.Scalar", lambda n: (normal(n), 2.0), gradient=False),
        case("aten.empty.memory_format", lambda n: ([n, 3],), **empty),
        case("aten.empty_like.default", lambda n: (normal(n, 3),), **empty),
        case("aten.new_empty.default", lambda n: (normal(n), [3]), **empty),
    ]
