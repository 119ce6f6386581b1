"""Products of three operands by `einsum` where opt_einsum, which chooses their order, is installed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from ortmodule_py.dynamo.patches.einsum_paths import installed
from tests.semantics import Calls, as_in_eager, assert_whole


def _inputs_of_a_scan(m: Any, x: Tensor) -> tuple[Tensor, ...]:
    delta, b = m.fc(x), m.fc(x).tanh()
    by_step = torch.einsum("bld,bln,bld->bldn", delta, b, x)
    return by_step, torch.einsum("...d,de,...e->...", delta, m.fc.weight, x)


def test_other_sizes_are_no_captures() -> None:
    asked = []

    def the_last_two_first(_: str, *operands: Any, shapes: bool = False, **__: Any) -> Any:
        sizes = [tuple(map(int, given if shapes else given.shape)) for given in operands]
        asked.append(sizes)
        return [(1, 2), (0, 1)], ""

    def step(model: Any) -> list[Tensor]:
        results = []
        for rows, steps in ((4, 5), (3, 5), (6, 5)):
            results += model(torch.randn(rows, steps, 4))
        sum(result.square().sum() for result in results).backward()
        return results

    with installed(the_last_two_first):
        assert_whole(as_in_eager(Calls(_inputs_of_a_scan), step))
    assert [(4, 5, 4), (4, 5, 4), (4, 5, 4)] in asked


def _contract(equation: str, *operands: Tensor, **_: Any) -> Tensor:
    """opt_einsum is not among the packages of tests: its function, as Dynamo sees it."""
    torch._dynamo.graph_break()
    return torch.einsum(equation, *operands)


class _Expression:
    """A contraction of opt_einsum whose order is known."""

    def __init__(self, contraction: str, constants: dict[int, Tensor]) -> None:
        self.contraction = contraction
        self._constants_dict = constants

    def __call__(self, *operands: Tensor) -> Tensor:
        return _contract(self.contraction, *operands, *self._constants_dict.values())


_contract.__module__ = _Expression.__call__.__module__ = "opt_einsum.contract"
_contract.__name__ = "contract"


@pytest.mark.parametrize("constants", [False, True])
def test_contractions_of_opt_einsum(constants: bool) -> None:
    given = {1: torch.ones(4)} if constants else {}
    expression = _Expression("bi,i->b" if constants else "bi,bi->b", given)

    def contracted(self: Any, x: Tensor) -> Tensor:
        y = _contract("bi,ij,kj->bk", x, self.fc.weight, self.fc.weight, optimize="greedy")
        return y.sum(1) * (expression(y) if constants else expression(y, x))

    def step(model: Any) -> list[Tensor]:
        results = [model(torch.randn(rows, 4)) for rows in (3, 4, 5)]
        sum(result.square().sum() for result in results).backward()
        return results

    report = as_in_eager(Calls(contracted), step)
    if not constants:
        assert_whole(report)
