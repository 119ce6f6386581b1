"""Products of three operands by `einsum` where opt_einsum, which chooses their order, is installed."""

from __future__ import annotations

from typing import Any

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
