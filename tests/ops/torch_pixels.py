"""Channels as blocks of pixels, or in another order: views and a copy."""

from __future__ import annotations

from .case import Case, case, normal


def cases() -> list[Case]:
    return [
        case("aten.pixel_shuffle.default", lambda n: (normal(n, 8, 3, 5), 2)),
        case("aten.pixel_shuffle.default", lambda n: (normal(9, n, 2), 3), label="-3d"),
        case("aten.pixel_shuffle.default", lambda n: (normal(2, 3, 4, n, 2), 2), label="-5d"),
        case("aten.channel_shuffle.default", lambda n: (normal(n, 6, 3, 5), 2)),
        case("aten.channel_shuffle.default", lambda n: (normal(2, 6, n), 3), label="-3d"),
        case("aten.pixel_unshuffle.default", lambda n: (normal(n, 2, 4, 6), 2)),
        case("aten.pixel_unshuffle.default", lambda n: (normal(2, 3 * n, 3), 3), label="-3d"),
        case("aten.pixel_unshuffle.default", lambda n: (normal(2, 3, 1, 2, 2 * n), 2), label="-5d"),
    ]
