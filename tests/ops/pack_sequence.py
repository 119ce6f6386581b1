"""PackSequence and PadSequence: rows of padded and packed batches."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ortmodule_py.trace.decompositions.packed_sequences import pack, pad

from .case import Case, case, integers, normal


def _lengths(n: int) -> Tensor:
    return torch.tensor([4] + [2] * (n - 1))


def _batch_sizes(n: int) -> Tensor:
    return torch.tensor([n, n, 1, 1])


def _packed(x: Tensor, lengths: Tensor, rows: int) -> list[Tensor]:
    return list(pack(x, lengths, rows, 4, False))


def _packed_of_batch_first(x: Tensor, lengths: Tensor, rows: int) -> Tensor:
    return pack(x.transpose(0, 1), lengths, rows, 4, True)[0]


def _padded(data: Tensor, batch_sizes: Tensor, batch: int) -> list[Tensor]:
    return list(pad(data, batch_sizes, batch, 4, False, 0.0))


def _padded_batch_first(data: Tensor, batch_sizes: Tensor, batch: int) -> Tensor:
    return pad(data, batch_sizes, batch, 6, True, -2.0)[0]


def cases() -> list[Case]:
    def one(target: str, function: Any, build: Any, label: str = "", **options: Any) -> Case:
        target = f"ortmodule_py.{target}.default"
        return case(
            target, build, function=function, sizes=(1,), label=label, on_host=(1,), **options
        )

    def of_words(n: int) -> list[Any]:
        return [integers(9, 5, n), _lengths(n), 2 * n + 2]

    return [
        one("pack_sequence", _packed, lambda n: [normal(5, n, 3), _lengths(n), 2 * n + 2]),
        one(
            "pack_sequence",
            _packed_of_batch_first,
            lambda n: [normal(5, n, 2, 3), _lengths(n), 2 * n + 2],
            "-first",
        ),
        one("pack_sequence", _packed, of_words, "-words", gradient=False),
        one("pad_sequence", _padded, lambda n: [normal(2 * n + 2, 3), _batch_sizes(n), n]),
        one(
            "pad_sequence",
            _padded_batch_first,
            lambda n: [normal(2 * n + 2, 2, 3), _batch_sizes(n), n],
            "-first",
        ),
    ]
