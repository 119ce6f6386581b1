"""Paddings that repeat elements, and cross products."""

from __future__ import annotations

import torch
from torch import Tensor

from .case import Case, case, integers, normal

_REFLECT = "aten.reflection_pad{}d.default"
_REPLICATE = "aten.replication_pad{}d.default"
_CIRCULAR = "aten._pad_circular.default"
_CROSS = "aten.linalg_cross.default"


def _images(target: str) -> list[Case]:
    one, two, three = (target.format(d) for d in (1, 2, 3))
    # Sizes that leave enough to repeat.
    return [
        case(one, lambda n: (normal(2, n + 4), [3, 2]), contains="Concat"),
        case(one, lambda n: (normal(3, 2, n + 4), [0, 2]), label="-batch"),
        case(one, lambda n: (normal(2, 3 * n + 4), [n, n + 1]), label="-size"),
        case(one, lambda n: (normal(2, n + 4), [-1, 2]), label="-crop", aten="negative"),
        case(two, lambda n: (normal(2, 3, n + 4, 5), [1, 2, 3, 0])),
        case(two, lambda n: (normal(3, n + 4, 5), [0, 0, 1, 1]), label="-lines"),
        case(three, lambda n: (normal(2, n + 4, 5, 4), [1, 1, 2, 2, 3, 1])),
    ]


def _channels_last(x: Tensor, pads: list[int]) -> Tensor:
    image = x.contiguous(memory_format=torch.channels_last)
    return torch.ops.aten.reflection_pad2d(image, pads)


def cases() -> list[Case]:
    return [
        *_images(_REFLECT),
        *_images(_REPLICATE),
        case(_REFLECT.format(2), lambda n: (normal(2, 3, 5, n + 4), [1, 2, 2, 1]),
             function=_channels_last, label="-channels_last"),
        case(_CIRCULAR, lambda n: (normal(2, 3, n + 4, 5), [1, 2, 4, 0]), contains="Concat"),
        case(_CIRCULAR, lambda n: (normal(2, 2, n + 3), [n, 1]), label="-size"),
        case(_CIRCULAR, lambda n: (integers(9, 2, n + 4), [1, 2]), label="-integers"),
        case(_CROSS, lambda n: (normal(n, 3), normal(n, 3))),
        case(_CROSS, lambda n: (normal(3, n, 2), normal(3, 1, 2)), dim=0, label="-broadcast"),
    ]  # fmt: skip
