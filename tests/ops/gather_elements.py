"""GatherElements and ScatterElements."""

from __future__ import annotations

import torch
from torch import Tensor

from .case import Case, case, integers, normal

_GATHER = "aten.gather.default"
_ADD = "aten.scatter_add.default"
_SET = "aten.scatter.src"


def _add_at_one(x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    return x.scatter_add(dim, index.expand_as(src), src)


def _set_at_one(x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    return x.scatter(dim, index.expand_as(src), src)


def cases() -> list[Case]:
    return [
        case(_GATHER, lambda n: (normal(n, 5), 1, integers(5, n, 2))),
        case(_GATHER, lambda n: (normal(7, 5), 0, integers(7, n, 5)), label="-first"),
        case(_GATHER, lambda n: (normal(n, 5), -1, integers(5, 3, 1)), label="-part"),
        case(_GATHER, lambda n: (normal(2, n, 5, 1, 3), 2, integers(5, 2, n, 2, 1, 3)),
             label="-5d"),
        case(_GATHER, lambda n: (normal(5), 0, integers(5, n)), label="-1d"),
        case(_ADD, lambda n: (normal(n, 5), 1, integers(5, n, 2), normal(n, 2))),
        case(_ADD, lambda n: (normal(3, 20), 0, integers(3, n, 20), normal(n, 20)),
             label="-collisions"),
        case(_ADD, lambda n: (normal(5), 0, integers(5, n), normal(n)), label="-1d"),
        case(_ADD, lambda n: (integers(9, 5), 0, integers(5, n), integers(9, n)),
             label="-integers"),
        case(_SET, lambda n: (normal(n, 5), 1, torch.arange(3).repeat(n, 1), normal(n, 3))),
        # Every update to the same place: the index is expanded along the axis, too.
        case(_ADD, lambda n: (normal(8, 4), 0, integers(8, 1, 1), normal(n, 4)),
             function=_add_at_one, label="-one_place"),
        case(_ADD, lambda n: (normal(n, 8), 1, integers(8, 1, 1), normal(n, 4)),
             function=_add_at_one, label="-one_column"),
        case(_ADD, lambda n: (normal(8, 4), 0, integers(8, n, 1), normal(n, 4)),
             function=_add_at_one, label="-rows"),
        case(_SET, lambda n: (normal(8, 4), 0, integers(8, 1, 1), normal(1, 4).expand(n, 4)),
             function=_set_at_one, label="-one_place", symbolic=False),
        case("aten.scatter.value", lambda n: (normal(n, 5), 1, integers(5, n, 2), 0.5)),
    ]  # fmt: skip
