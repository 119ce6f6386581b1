"""Keeps why a graph breaks within `try` and other places behind which Dynamo cannot go on.

Dynamo then captures once more, up to the last line before that place, and gives that graph a reason of its own,
"step_unsupported". Conditions have "generic_jump", whatever they depend on. Nor has it a graph for a break in front
of which there is nothing to capture, as a `print` in the first line: such a break is noted here, as this attempt may
not be the last one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.output_graph import GraphCompileReason

from ortmodule_py.dynamo.graph_breaks import graph_break_in_words
from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import capturing_compiler, patch


def _probe(trial: Trial) -> bool:
    def attempted(x: Tensor) -> Tensor:
        x = x.sin().cos()
        try:
            y = x * x.sum().item()
        finally:
            x = x * 2
        return x + y

    same = trial(lambda: attempted, (torch.ones(3, requires_grad=True),))
    named = ["is read from a tensor" in reason for reason in trial.graph_breaks]
    return same and named == [True]


@patch(
    "break_reasons",
    "The reason of a graph break within `try` is known.",
    "torch._dynamo.symbolic_convert:InstructionTranslatorBase.log_graph_break",
    probe=_probe,
    needed_by=None,
)
def _log(log: Callable[..., Any], self: Any, code_options: Any, reason: Any, exc: Any) -> Any:
    # The next attempt has the same speculations.
    stack = getattr(exc, "real_stack", None) or [self.frame_summary()]
    why = GraphCompileReason(str(exc), stack)
    if self.current_speculation is not None:
        self.current_speculation.reason = why
    vars(self.output)["_ortmodule_latest"] = why
    return log(self, code_options, reason, exc)


@patch(
    "kept_break_reasons",
    "The reason of a graph break within `try` is reported.",
    "torch._dynamo.output_graph:OutputGraph.compile_subgraph",
    probe=_probe,
    needed_by=None,
)
def _compile(
    compile_graph: Callable[..., Any], self: Any, tx: Any, reason: Any, stack_pops: int = 0
) -> Any:
    if reason.reason == "step_unsupported" and tx.current_speculation.reason is not None:
        reason = tx.current_speculation.reason
    elif reason.reason.startswith("generic_jump"):  # which says nothing of the condition
        reason = vars(self).get("_ortmodule_latest", reason)
    log: Any = capturing_compiler().log  # type: ignore[union-attr]
    reported = len(log.graph_breaks)
    compiled = compile_graph(self, tx, reason, stack_pops)
    log.empty_break = graph_break_in_words(reason) if len(log.graph_breaks) == reported else None
    return compiled
