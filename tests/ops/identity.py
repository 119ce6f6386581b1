"""Identity and Detach."""

from __future__ import annotations

from .case import Case, case, normal

_NAMES = ["contiguous", "clone", "alias", "detach", "positive"]


def cases() -> list[Case]:
    return [
        *(case(f"aten.{name}.default", lambda n: (normal(n, 3),)) for name in _NAMES),
        case("aten.lift_fresh.default", lambda n: (normal(n, 3),), arrives_as="aten.view.default"),
        case(
            "aten.lift_fresh_copy.default",
            lambda n: (normal(n),),
            arrives_as="aten.clone.default",
        ),
        case(
            "aten.detach_.default",
            lambda n: (normal(n, 3),),
            function=lambda x: x.detach(),
            arrives_as="aten.detach.default",
        ),
        case("aten.clone.default", lambda n: (normal(2, n, 1, 3, 2),), label="-5d"),
    ]
