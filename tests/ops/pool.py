"""MaxPool and AveragePool."""

from __future__ import annotations

from .case import Case, case, normal

_MAX = "aten.max_pool2d.default"
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
