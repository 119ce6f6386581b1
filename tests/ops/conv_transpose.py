"""ConvTranspose."""

from __future__ import annotations

from .case import Case, case, normal

_1D, _2D, _3D = (
    f"aten.conv_transpose{rank}.{name}"
    for rank, name in (("1d", "default"), ("2d", "input"), ("3d", "input"))
)


def cases() -> list[Case]:
    return [
        case(_1D, lambda n: (normal(2, 3, n), normal(3, 4, 3), normal(4))),
        case(_1D, lambda n: (normal(n, 3, 6), normal(3, 4, 3), None, [2], [1], [1]),
             label="-stride"),
        case(_2D, lambda n: (normal(n, 4, 5, 5), normal(4, 3, 3, 2), normal(6), [2, 1], [1, 0],
                             [1, 0], 2, [1, 2]), label="-groups"),
        case(_2D, lambda n: (normal(n, 3, 6, 6), normal(3, 5, 2, 2), normal(5), [2, 2])),
        case(_3D, lambda n: (normal(n, 3, 3, 4, 3), normal(3, 2, 2, 2, 2))),
    ]  # fmt: skip
