"""Normal numbers; tests/runtime/test_draws.py looks at the distributions."""

from __future__ import annotations

import torch

from .case import Case, case, normal
from .random_uniform import within


def cases() -> list[Case]:
    standard = within(-9, 9, 0.0)
    return [
        case("aten.randn.default", lambda n: ([n, 131],), check=standard, dtype=torch.float64),
        case("aten.randn_like.default", lambda n: (normal(n, 131),), check=standard),
        case(
            "aten.normal_functional.default",
            lambda n: (normal(n, 131),),
            check=standard,
            gradient=False,
        ),
        case(
            "aten.normal_functional.default",
            lambda n: (normal(n, 131), 5.0, 0.5),
            check=within(0.5, 9.5, 5.0),
            gradient=False,
            label="-moved",
        ),
        case(
            "aten.normal.float_float",
            lambda n: (5.0, 0.5, [n, 131]),
            check=within(0.5, 9.5, 5.0),
            dtype=torch.float64,
        ),
    ]
