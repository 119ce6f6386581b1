"""Slice, select, their scatters and roll."""

from __future__ import annotations

from .case import Case, case, normal

_SLICE = "aten.slice.Tensor"
_SELECT = "aten.select.int"
_END = 9223372036854775807


def _slices() -> list[Case]:
    builds = [
        lambda n: (normal(n, 3), 0, 0, 3),
        lambda n: (normal(5, 3), 0, 1, -1),
        lambda n: (normal(n, 3), 0, 1, _END),
        lambda n: (normal(n, 3), 0, 0, -1),
        lambda n: (normal(n, 3), 0, -2, _END),
        lambda n: (normal(2 * n, 3), 0, 0, _END, 2),
        lambda n: (normal(9, n), 0, 1, 8, 3),
        lambda n: (normal(2 * n, 3), 0, 0, n),
        lambda n: (normal(2 * n, 3), 0, n, _END),
        lambda n: (normal(5, 3), 0, n, 20),
        lambda n: (normal(n, 3), 1, -100, 2),
        lambda n: (normal(9, n), 1, 0, 3),
        lambda n: (normal(1, 20), 1, 0, n),
        lambda n: (normal(n, n + 3), 1, -n, _END),
        lambda n: (normal(n), 0, 2, 2),
        lambda n: (normal(2, n, 1, 5, 2), 3, 1, 4),
    ]
    return [
        *(case(_SLICE, build) for build in builds),
        case(_SLICE, lambda n: (normal(7, 3), 0, None, None, 2), label="-step"),
    ]


def cases() -> list[Case]:
    selects = [(dim, i) for dim in (0, 1) for i in (0, 2, -1)]
    return [
        *_slices(),
        *(case(_SELECT, lambda n, d=d, i=i: (normal(5, n, 3), d, i)) for d, i in selects),
        case(_SELECT, lambda n: (normal(n), 0, 0), label="-scalar"),
        case("aten.slice_scatter.default", lambda n: (normal(n, 3), normal(2, 3), 0, 1, 3)),
        case("aten.slice_scatter.default", lambda n: (normal(n, 3), normal(n, 2), 1, 1),
             label="-inner"),
        case("aten.select_scatter.default", lambda n: (normal(n, 3), normal(3), 0, 0)),
        case("aten.select_scatter.default", lambda n: (normal(n, 3), normal(n), 1, -1),
             label="-last"),
        case("aten.roll.default", lambda n: (normal(n, 5), [2], [0])),
        case("aten.roll.default", lambda n: (normal(n, 5), [-2, 3], [0, 1]), label="-two"),
        case("aten.roll.default", lambda n: (normal(n, 5), [2]), label="-flat",
             aten="name its dimension"),
    ]  # fmt: skip
