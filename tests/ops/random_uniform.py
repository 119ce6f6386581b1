"""Uniform numbers; tests/runtime/test_draws.py looks at the distributions."""

from __future__ import annotations

import torch

from .case import Case, Check, Outcome, case, normal


def within(low: float, high: float, mean: float | None, *, closed: bool = False) -> Check:
    """All numbers are of [low, high), or with `closed` of [low, high], and their mean is near `mean`."""

    def check(outcome: Outcome) -> None:
        (y,) = outcome.outputs
        assert not y.requires_grad
        exact = y.double()
        assert ((exact >= low) & ((exact <= high) if closed else (exact < high))).all()
        if mean is not None and y.numel() > 500:
            spread = float(exact.std())
            assert spread > 0 and abs(float(exact.mean()) - mean) < 6 * spread / y.numel() ** 0.5

    return check


def cases() -> list[Case]:
    return [
        case(
            "aten.rand.default",
            lambda n: ([n, 131],),
            check=within(0, 1, 0.5),
            dtype=torch.float64,
        ),
        case("aten.rand_like.default", lambda n: (normal(n, 131),), check=within(0, 1, 0.5)),
        case(
            "aten.uniform.default",
            lambda n: (normal(n, 131),),
            check=within(0, 1, 0.5),
            gradient=False,
        ),
        case(
            "aten.uniform.default",
            lambda n: (normal(n, 131), -2.0, 3.0),
            check=within(-2, 3, 0.5, closed=True),  # the narrower types round
            gradient=False,
            label="-bounds",
        ),
    ]
