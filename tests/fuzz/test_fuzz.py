"""Random modules against eager PyTorch; see `python -m tests.fuzz --help` for more of them."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from torch import nn

from .__main__ import describe
from .driver import run_seeds
from .generator import generate
from .run_case import Difference, is_valid, run

_AS_EXPECTED = ("same", "sensitive", "refused")
QUICK = range(3)
SLOW = [*range(3, 15), *range(2000, 2035)]


def _failures(seeds: Iterable[int]) -> str:
    outcomes = run_seeds(list(seeds))
    return "\n\n".join(describe(o) for o in outcomes if o["status"] not in _AS_EXPECTED)


def test_fixed_seeds() -> None:
    failures = _failures(QUICK)
    assert not failures, failures


@pytest.mark.slow
def test_many_seeds() -> None:
    failures = _failures(SLOW)
    assert not failures, failures


def test_a_case_is_the_same_every_time() -> None:
    first, second = (generate(5, is_valid) for _ in range(2))
    assert first.describe() == second.describe()
    a, b = first.module(first.dtype), second.module(second.dtype)
    for p, q in zip(a.parameters(), b.parameters(), strict=True):
        assert torch.equal(p, q)


def _scale_a_gradient(module: nn.Module) -> None:
    """Makes the largest gradient wrong by a thousandth."""
    grads = [p.grad for p in module.parameters() if p.grad is not None]
    max(grads, key=lambda g: float(g.abs().max())).mul_(1.001)


def _drop_a_gradient(module: nn.Module) -> None:
    for p in module.parameters():
        if p.grad is not None:
            p.grad = None
            return


@pytest.mark.parametrize("corrupt", [_scale_a_gradient, _drop_a_gradient])
def test_a_wrong_gradient_is_found(corrupt: object) -> None:
    case = generate(SEED_WITH_GRADIENTS, is_valid)
    run(case)
    with pytest.raises(Difference, match="gradient of"):
        run(case, corrupt)  # type: ignore[arg-type]


SEED_WITH_GRADIENTS = 15
