"""Conv."""

from __future__ import annotations

from .case import Case, case, normal

_CONV2D = "aten.conv2d.default"
_CONVOLUTION = "aten.convolution.default"


def cases() -> list[Case]:
    return [
        case("aten.conv1d.default", lambda n: (normal(2, 3, n), normal(4, 3, 3), normal(4))),
        case("aten.conv1d.default", lambda n: (normal(n, 3, 10), normal(4, 3, 3), None, [2], [1]),
             label="-stride"),
        case(_CONV2D, lambda n: (normal(n, 4, 9, 9), normal(6, 2, 3, 3), normal(6), [2, 1], [1, 1],
                                 [1, 2], 2), label="-groups"),
        case(_CONV2D, lambda n: (normal(n, 3, 12, 12), normal(5, 3, 3, 3), normal(5), [1, 1],
                                 [1, 1])),
        case(_CONV2D, lambda n: (normal(n, 3, 5, 5), normal(1, 3, 1, 1)), label="-pointwise"),
        case("aten.conv3d.default", lambda n: (normal(n, 4, 5, 5, 5), normal(6, 4, 2, 2, 2))),
        case(_CONVOLUTION, lambda n: (normal(2, 4, 9), normal(6, 4, 3), normal(6), [1], [1], [1],
                                      False, [0], 1)),
        case(_CONVOLUTION, lambda n: (normal(2, 4, n + 6), normal(4, 6, 3), normal(6), [1], [1],
                                      [1], True, [0], 1), label="-transposed"),
    ]  # fmt: skip
