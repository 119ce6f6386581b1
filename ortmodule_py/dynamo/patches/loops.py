"""Finds the loops in which a graph breaks, which `dynamo/loops` moves into functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ortmodule_py.dynamo.loops import outline
from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import capturing_compiler, patch


def _probe(trial: Trial) -> bool:
    def doubled(x: Tensor) -> Tensor:
        x = x.sin()
        for _ in range(2):
            torch._dynamo.graph_break()
            x = x * 2
        return x.cos()

    same = trial(lambda: doubled, (torch.ones(3, requires_grad=True),))
    return same and not trial.eager_pieces


@patch(
    "loops",
    "What stands before and after a loop that breaks the graph is compiled.",
    "torch._dynamo.symbolic_convert:InstructionTranslatorBase.maybe_has_backedge",
    probe=_probe,
    needed_by=None,
)
def _noted(has_backedge: Callable[..., bool], self: Any) -> bool:
    compiler: Any = capturing_compiler()
    place = self.f_code, self.current_instruction.offset
    # Dynamo does not see a loop that returns, and continues it in a new function for each round.
    found = has_backedge(self) or (self.parent is None and outline(*place) is not None)
    if found:
        compiler.log.loop_break = place
    return found
