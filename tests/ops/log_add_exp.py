"""LogAddExp."""

from __future__ import annotations

import math

from .case import Case, case, normal, numbers

_LOGADDEXP = "aten.logaddexp.default"


def cases() -> list[Case]:
    inf = math.inf
    return [
        case(_LOGADDEXP, lambda n: (normal(n, 3), normal(n, 3)), contains="LogAddExp"),
        case(_LOGADDEXP, lambda n: (normal(n, 1), normal(3)), label="-broadcast"),
        case(_LOGADDEXP, lambda n: (normal(n, 3) * 200, normal(n, 3) * 200), label="-large"),
        case(
            _LOGADDEXP,
            lambda n: (numbers(-inf, -inf, inf, inf, 2.0), numbers(1.0, -inf, inf, 1.0, 2.0)),
            gradient=False,
            label="-infinite",
        ),
    ]
