"""Gather: embedding, index_select and indexing by tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from .case import Case, case, flags, integers, normal

_EMBEDDING = "aten.embedding.default"
_SELECT = "aten.index_select.default"
_INDEX = "aten.index.Tensor"
_PUT = "aten.index_put.default"


def _mask_grid(n: int) -> tuple[Tensor, list[Tensor]]:
    """Transformers look up a padding mask like this."""
    zero = torch.zeros(1, 1, 1, 1, dtype=torch.int64)
    return flags(n, 1, 1, 13), [torch.arange(n).view(n, 1, 1, 1), zero, zero, torch.arange(13)]


def _of_rows(x: Tensor, row: Tensor, place: Tensor) -> Tensor:
    """Rows of keys for each query, as sparse attention draws them."""
    return x.expand(2, len(row), 5, 3)[:, row, place, :]


def _apart(n: int) -> list[Tensor | None]:
    """Indices of places in [10, 5, 3] that are all different: of two writes to one, any may stay."""
    return [torch.arange(n) % 10 - 3, None, torch.arange(n) % 3]


def cases() -> list[Case]:
    return [
        case(_EMBEDDING, lambda n: (normal(10, 3), integers(10, 2, n))),
        case(_EMBEDDING, lambda n: (normal(10, 3), integers(4, 2, n), 2), label="-padding"),
        case(_EMBEDDING, lambda n: (normal(10, 3), integers(4, 2, n), -1, True), label="-scaled",
             aten="scale_grad_by_freq"),
        case(_EMBEDDING, lambda n: (normal(10, 3), integers(10, n, dtype=torch.int32)),
             label="-i32"),
        case(_EMBEDDING, lambda n: (normal(10, 3), integers(10)), label="-scalar"),
        case(_SELECT, lambda n: (normal(10, n), 0, integers(10, 4))),
        case(_SELECT, lambda n: (normal(5, n), -1, integers(7, 4)), label="-last"),
        case(_SELECT, lambda n: (normal(2, 5, n, 1, 3), 1, integers(5, n)), label="-5d"),
        case(_INDEX, lambda n: (normal(10, 3), [integers(10, n)])),
        case(_INDEX, lambda n: (normal(10, 5, 3), [None, integers(5, 2, n)]), label="-second"),
        case(_INDEX, lambda n: (normal(10, 5, 3), [integers(10, n), integers(5, n)]),
             label="-two"),
        case(_INDEX, lambda n: (normal(5, 3), [torch.tensor([-1, 0, -1])]), label="-negative"),
        case(_INDEX, lambda n: (normal(10, 5, 3), [None, integers(5, n), integers(0, n, low=-3)]),
             label="-last_two"),
        case(_INDEX, lambda n: (normal(10, 5, 3), [integers(10, n, 1), integers(0, 4, low=-5),
                                                   None]), label="-grid"),
        case(_INDEX, _mask_grid, label="-mask"),
        case(_INDEX, lambda n: (normal(2, 1, 5, 3), integers(n, n, 1, low=-n), integers(5, n, 4)),
             function=_of_rows, label="-expanded"),
        case(_INDEX, lambda n: (normal(10, 5, 3), [integers(10, n), None, integers(3, n)]),
             label="-apart", aten="index"),
        case(_PUT, lambda n: (normal(10, 3), [integers(10, n)], normal(n, 3), True)),
        case(_PUT, lambda n: (normal(n, 3), [torch.arange(n)], normal(n, 3)), label="-set"),
        case(_PUT, lambda n: (normal(n, 7, 3), [None, torch.tensor([[0, -1], [2, 3]])],
                              normal(2, 1)), label="-broadcast"),
        case(_PUT, lambda n: (normal(9, 5, n), [integers(9, 1, 4), integers(0, 6, 1, low=-5)],
                              normal(6, 4, n), True), label="-two"),
        case(_PUT, lambda n: (normal(4, 3), [integers(4, n)], normal()), label="-number"),
        case(_PUT, lambda n: (normal(4, n, 3), [flags(4, n)], normal(1)), label="-mask",
             arrives_as="aten.where.self"),
        case(_PUT, lambda n: (flags(4, n), [integers(4, 3)], flags(3, 1), True), label="-truths",
             aten="accumulate of bools", gradient=False),
        case(_PUT, lambda n: (normal(10, 5, 3), _apart(n), normal(n, 5)), label="-apart",
             aten="index_put"),
    ]  # fmt: skip
