"""Reshape, Squeeze and Unsqueeze."""

from __future__ import annotations

from .case import Case, case, normal

_VIEW = "aten.view.default"


def cases() -> list[Case]:
    return [
        case(_VIEW, lambda n: (normal(n, 6), [n, 2, 3])),
        case(_VIEW, lambda n: (normal(n, 2, 3), [-1, 3]), label="-merge"),
        case(_VIEW, lambda n: (normal(n, 4), [2, n, 2]), label="-shift"),
        case("aten._unsafe_view.default", lambda n: (normal(n, 2, 3), [2 * n, 3])),
        case("aten.reshape.default", lambda n: (normal(n, 2, 3), [2 * n, 3])),
        case("aten.reshape.default", lambda n: (normal(1, 1), []), label="-scalar"),
        case("aten._reshape_copy.default", lambda n: (normal(n, 2, 3), [n, 6])),
        case("aten.flatten.using_ints", lambda n: (normal(2, n, 3), 1)),
        case("aten.flatten.using_ints", lambda n: (normal(2, n, 1, 3, 2), 1, 3), label="-5d"),
        case("aten.unflatten.int", lambda n: (normal(n, 9), 1, [3, 3])),
        case("aten.view_as.default", lambda n: (normal(n, 9), normal(n, 3, 3)), constant=(1,)),
        case("aten.squeeze.default", lambda n: (normal(1, n, 1),)),
        case("aten.squeeze.dim", lambda n: (normal(1, n, 1), 0)),
        case("aten.squeeze.dim", lambda n: (normal(1, n, 1), 1), label="-kept"),
        case("aten.squeeze.dim", lambda n: (normal(), 0), label="-scalar"),
        case("aten.squeeze.dims", lambda n: (normal(1, n, 1), [0, 2])),
        case("aten.unsqueeze.default", lambda n: (normal(n, 3), -1)),
        case("aten.unsqueeze.default", lambda n: (normal(n, 3), 0), label="-first"),
        case("aten.unsqueeze.default", lambda n: (normal(n, 3), 1), label="-inner"),
    ]
