"""MaxPool and AveragePool."""

from __future__ import annotations

from .case import Case, case, normal

_MAX = "aten.max_pool2d.default"
_VOLUME = "aten.max_pool3d.default"
_AVERAGE = "aten.avg_pool2d.default"
_ADAPTIVE = "aten.adaptive_avg_pool2d.default"


def cases() -> list[Case]:
    return [
        case(_MAX, lambda n: (normal(n, 3, 10, 10), [2, 2])),
        case(_MAX, lambda n: (normal(n, 3, 9, 9), [3, 3], [2, 2], [1, 1]), label="-padded"),
        case(_MAX, lambda n: (normal(2, 3, 10, 10), [3, 3], [2, 2], [0, 0], [1, 1], True),
             label="-ceil", aten="ceil"),
        case(_MAX, lambda n: (normal(n, 3, 11, 10), [3, 2], [2, 1], [1, 1], [2, 3]),
             label="-dilated"),
        case(_MAX, lambda n: (normal(n, 2, 18, 18), [16, 16], [1, 1]), label="-large",
             aten="fit one byte"),
        case("aten.max_pool2d_with_indices.default",
             lambda n: (normal(n, 3, 10, 10), [3, 3], [2, 2], [1, 1])),
        case(_VOLUME, lambda n: (normal(n, 3, 6, 5, 8), [2, 2, 2])),
        case(_VOLUME, lambda n: (normal(n, 2, 5, 7, 6), [3, 2, 3], [2, 1, 2], [1, 0, 1], [1, 2, 1]),
             label="-padded-dilated"),
        case(_VOLUME, lambda n: (normal(2, 3, 5, 6, 5), [2], [2], [0], [1], True), label="-ceil",
             aten="ceil"),
        case(_VOLUME, lambda n: (normal(n, 2, 9, 9, 9), [7, 7, 7]), label="-large",
             aten="fit one byte"),
        case("aten.max_pool3d_with_indices.default",
             lambda n: (normal(n, 3, 6, 6, 7), [3, 3, 3], [2, 2, 2], [1, 1, 1])),
        case(_AVERAGE, lambda n: (normal(n, 3, 10, 10), [2, 2])),
        case(_AVERAGE, lambda n: (normal(n, 3, 10, 10), [3, 3], [2, 2], [1, 1], False, False),
             label="-uncounted"),
        case(_AVERAGE, lambda n: (normal(2, 3, 10, 9), [3, 3], [2, 2], [1, 1], True), label="-ceil",
             aten="ceil"),
        case(_AVERAGE, lambda n: (normal(n, 3, 10, 10), [3], [2], [1]), label="-padded"),
        case(_ADAPTIVE, lambda n: (normal(n, 3, 10, 10), [1, 1])),
        case(_ADAPTIVE, lambda n: (normal(n, 3, 10, 10), [5, 5]), label="-divides"),
        case(_ADAPTIVE, lambda n: (normal(n, 3, 10, 10), [3, 3]), label="-uneven",
             aten="several sizes"),
        case(_ADAPTIVE, lambda n: (normal(n, 3, 10, 10), [0, 5]), label="-nothing",
             aten="several sizes", gradient=False),
        case("aten._adaptive_avg_pool2d.default", lambda n: (normal(n, 3, 10, 10), [2, 2])),
    ]  # fmt: skip
