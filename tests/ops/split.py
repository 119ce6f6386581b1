"""Split in all its spellings."""

from __future__ import annotations

from .case import Case, case, normal

_SPLIT = "aten.split.Tensor"
_CHUNK = "aten.chunk.default"
_UNBIND = "aten.unbind.int"


def cases() -> list[Case]:
    return [
        case(_SPLIT, lambda n: (normal(n, 6), 2, 1)),
        case(_SPLIT, lambda n: (normal(n, 8), 3, 1), label="-rest"),
        case(_SPLIT, lambda n: (normal(n, 3), n, 0), label="-whole"),
        case(_SPLIT, lambda n: (normal(3 * n, 3), n, 0), label="-size"),
        case("aten.split.sizes", lambda n: (normal(n, 9), [2, 4, 3], 1)),
        case("aten.split_with_sizes.default", lambda n: (normal(n, 9), [2, 4, 3], -1)),
        case("aten.split_with_sizes.default", lambda n: (normal(n, 3), [n - 1, 1]), label="-size"),
        case(_CHUNK, lambda n: (normal(n, 9), 3, -1)),
        case(_CHUNK, lambda n: (normal(3 * n, 2), 3, 0), label="-size"),
        case(_CHUNK, lambda n: (normal(n, 7), 3, 1), label="-uneven"),
        case(_UNBIND, lambda n: (normal(3, n, 2),)),
        case(_UNBIND, lambda n: (normal(n, 2, 3), 2), label="-last"),
        case("aten.unsafe_split.Tensor", lambda n: (normal(n, 8), 3, 1)),
        case("aten.unsafe_split_with_sizes.default", lambda n: (normal(n, 9), [2, 4, 3], 1)),
        case("aten.unsafe_chunk.default", lambda n: (normal(n, 9), 3, 1)),
        case("aten.tensor_split.sections", lambda n: (normal(n, 9), 3, 1)),
        case("aten.tensor_split.indices", lambda n: (normal(n, 9), [2, 5], 1)),
        # Parts that overlap.
        case(
            "aten.tensor_split.indices",
            lambda n: (normal(n, 2), [3, 1]),
            label="-back",
            aten="add up",
        ),
        case(
            "aten.tensor_split.indices",
            lambda n: (normal(n, 9), [5, 2], 1),
            label="-fixed_back",
            aten="add up",
        ),
    ]
