"""Expand, repeat, copy."""

from __future__ import annotations

import torch

from .case import Case, case, normal

_EXPAND = "aten.expand.default"


def cases() -> list[Case]:
    return [
        case(_EXPAND, lambda n: (normal(n, 1, 3), [n, 4, 3])),
        case(_EXPAND, lambda n: (normal(1, 3), [2, n, 3]), label="-rank"),
        case(_EXPAND, lambda n: (normal(n, 3), [-1, 3]), label="-same"),
        case(_EXPAND, lambda n: (normal(), [n, 3]), label="-scalar"),
        case("aten.expand_as.default", lambda n: (normal(1, 3), normal(n, 3)), constant=(1,)),
        case("aten.broadcast_to.default", lambda n: (normal(3), [n, 3])),
        case("aten.repeat.default", lambda n: (normal(n, 3), [2, 1])),
        case("aten.repeat.default", lambda n: (normal(3), [4, n, 2]), label="-rank"),
        case("aten.copy.default", lambda n: (normal(n, 3), normal(3)), gradient=False),
        case(
            "aten.copy.default",
            lambda n: (normal(n, 3), normal(n, 3, dtype=torch.float32)),
            gradient=False,
            label="-cast",
        ),
        case("aten.fill.Tensor", lambda n: (normal(n, 3), torch.tensor(2.0))),
    ]
