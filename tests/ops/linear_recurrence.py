"""LinearRecurrence, which cumulative products are."""

from __future__ import annotations

from .case import Case, case, integers, normal, positive, small_steps

_CUMPROD = "aten.cumprod.default"
_RECURRENCE = "LinearRecurrence"


def cases() -> list[Case]:
    return [
        case(_CUMPROD, lambda n: (positive(n, 3), 0), contains=_RECURRENCE),
        case(_CUMPROD, lambda n: (positive(n, 3), -1), label="-last"),
        case(_CUMPROD, lambda n: (normal(2, n, 1, 3, 2), 1), label="-5d"),
        case(_CUMPROD, lambda n: (small_steps(n, 9), 1), label="-zeros"),
        case(_CUMPROD, lambda n: (positive(2, 70 + n), 0), label="-many_columns"),
        case(_CUMPROD, lambda n: (integers(5, n, 3), 1), label="-integers", aten="float"),
        case(_CUMPROD, lambda n: (normal(), 0), label="-scalar", aten="scalar"),
    ]
