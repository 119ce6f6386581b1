"""Other distributions; tests/runtime/test_draws.py looks at them."""

from __future__ import annotations

import dataclasses

import torch

from .case import Case, case, normal
from .random_uniform import within

_INTEGERS = within(3, 9, 5.5)
_FAR = float("inf")


def cases() -> list[Case]:
    return [dataclasses.replace(case, gradient=False) for case in _cases()]


def _cases() -> list[Case]:
    positive = within(1e-9, _FAR, 1.0)
    return [
        case("aten.exponential.default", lambda n: (normal(n, 131),), check=positive),
        case(
            "aten.exponential.default",
            lambda n: (normal(n, 131), 4.0),
            check=within(1e-9, _FAR, 0.25),
            label="-rate",
        ),
        case(
            "aten.log_normal.default",
            lambda n: (normal(n, 131), 0.0, 0.5),
            check=within(1e-9, _FAR, 1.133148),
        ),
        case(
            "aten.cauchy.default",
            lambda n: (normal(n, 131), 1.0, 0.5),
            check=within(-_FAR, _FAR, 1.0),
            sizes=(0,),
        ),
        case("aten.geometric.default", lambda n: (normal(n, 131), 0.25), check=within(1, _FAR, 4)),
        case("aten.randint.default", lambda n: (9, [n, 131]), check=within(0, 9, 4)),
        case(
            "aten.randint.default",
            lambda n: (n, [n, 131]),
            check=within(0, 11, None),
            label="-size",
        ),
        case("aten.randint.low", lambda n: (3, 9, [n, 131]), check=_INTEGERS),
        case(
            "aten.randint.low",
            lambda n: (-200, 55, [n, 131]),
            check=within(-200, 55, -73),
            dtype=torch.int16,
            label="-int16",
        ),
        case("aten.randint_like.default", lambda n: (normal(n, 131), 9), check=within(0, 9, 4)),
        case("aten.randint_like.low_dtype", lambda n: (normal(n, 131), 3, 9), check=_INTEGERS),
        case(
            "aten.random.default",
            lambda n: (normal(n, 131).to(torch.int8),),
            check=within(0, 128, 63.5),
        ),
        case("aten.random.to", lambda n: (normal(n, 131), 9), check=within(0, 9, 4)),
    ]
