"""Where and masked_fill."""

from __future__ import annotations

import math

import torch

from .case import Case, case, flags, integers, normal, numbers

_SELF = "aten.where.self"
_FILL = "aten.masked_fill.Scalar"
_NAN = "aten.nan_to_num.default"
_ODD = (1.5, math.nan, math.inf, -math.inf, -2.0)


def cases() -> list[Case]:
    return [
        case(_SELF, lambda n: (flags(n, 1), normal(n, 3), normal(3))),
        case(_SELF, lambda n: (flags(2, 1, n, 1, 2), normal(n, 3, 1), normal(3, 2)), label="-5d"),
        case(_SELF, lambda n: (flags(n), normal(n), torch.tensor(1.0)), label="-scalar"),
        case(_SELF, lambda n: (flags(n), integers(3, n), normal(n)), label="-promoted"),
        case("aten.where.ScalarOther", lambda n: (flags(n), normal(n), -1e9)),
        case("aten.where.ScalarSelf", lambda n: (flags(n), 0.0, normal(n))),
        case("aten.where.Scalar", lambda n: (flags(n), 1.0, 0.0)),
        case("aten.where.Scalar", lambda n: (flags(n), 1, 0), label="-integers"),
        case(_FILL, lambda n: (normal(n, 3), flags(n, 1), float("-inf"))),
        case(_FILL, lambda n: (integers(3, n), flags(n), -100), label="-integers"),
        case(_FILL, lambda n: (flags(n), flags(n), False), label="-bool"),
        case(_FILL, lambda n: (normal(3), flags(n, 3), 1.0), label="-broadcast"),
        case(_NAN, lambda n: (numbers(*_ODD),)),
        case(_NAN, lambda n: (numbers(*_ODD), 0.5, 9.0, -9.0), label="-values"),
        case(_NAN, lambda n: (integers(9, n),), label="-integers"),
        case(
            "aten.masked_fill.Tensor",
            lambda n: (normal(n, 3), flags(3), numbers(2.0).reshape(())),
        ),
    ]
