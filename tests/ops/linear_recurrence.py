"""LinearRecurrence, which cumulative products are."""

from __future__ import annotations

from .case import Case, case, integers, normal, positive, small_steps

_CUMPROD = "aten.cumprod.default"
_RECURRENCE = "LinearRecurrence"
_ELSEWHERE = "it has a kernel on the CPU only"


def cases() -> list[Case]:
    return [
        case(_CUMPROD, lambda n: (positive(n, 3), 0), contains=_RECURRENCE, aten=_ELSEWHERE),
        case(_CUMPROD, lambda n: (positive(n, 3), -1), label="-last", aten=_ELSEWHERE),
        case(_CUMPROD, lambda n: (normal(2, n, 1, 3, 2), 1), label="-5d", aten=_ELSEWHERE),
        case(_CUMPROD, lambda n: (small_steps(n, 9), 1), label="-zeros", aten=_ELSEWHERE),
        case(_CUMPROD, lambda n: (positive(2, 70 + n), 0), label="-many_columns", aten=_ELSEWHERE),
        case(_CUMPROD, lambda n: (integers(5, n, 3), 1), label="-integers", aten="float"),
        case(_CUMPROD, lambda n: (normal(), 0), label="-scalar", aten="scalar"),
    ]
