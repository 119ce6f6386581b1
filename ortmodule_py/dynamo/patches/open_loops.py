"""Lets a loop over a size run in Python once the size has had too many values.

Dynamo unrolls `for t in range(x.size(1))`, so each size is a capture, of as many nodes as the loop has rounds.
What stands around the loop needs no such captures, nor do the layers and functions that it calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ortmodule_py.dynamo.graph_breaks import OPEN_LOOP, user_line
from ortmodule_py.dynamo.loops import outline_rounds
from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import capturing_compiler, patch

_ROUNDS = 4
"""So many captured values of a size that is the number of a loop's rounds."""


def _probe(trial: Trial) -> bool:
    def summed(x: Tensor) -> Tensor:
        y = x.sin().sum(1)
        for t in range(x.size(1)):
            y = y + x[:, t]
        return y.cos()

    same = trial(lambda: summed, *((torch.ones(2, n, requires_grad=True),) for n in range(3, 12)))
    return same and not trial.eager_pieces and trial.captures < 9


@patch(
    "open_loops",
    "A loop over a size that keeps changing runs in Python instead of being captured for each size.",
    {
        (2, 11): "torch._dynamo.symbolic_convert:InstructionTranslatorBase.call_function",
        (2, 14): "torch._dynamo.symbolic_convert:generic_getiter",
    },
    probe=_probe,
    needed_by=None,
)
def _iterated(iterate: Callable[..., Any], *args: Any) -> Any:
    tx = args[0]
    if tx.current_instruction.opname == "GET_ITER":
        _break_open_loop(tx)
    return iterate(*args)


def _break_open_loop(tx: Any) -> None:
    """Break the graph if the loop that begins here has been captured for too many sizes."""
    log: Any = capturing_compiler().log  # type: ignore[union-attr]
    at = tx.current_instruction
    # Positions of `GET_ITER` include the loop's body before Python 3.12.
    iterated = tx.instructions[tx.instruction_pointer - 2].positions
    first, last = (iterated.lineno, iterated.end_lineno) if iterated else (None, None)
    lines = {f"{tx.f_code.co_filename}:{line}" for line in range(first or 0, (last or 0) + 1)}
    if tx.one_graph or log.most_captures(lines) < _ROUNDS:
        return
    is_part = tx.f_code in log.python_parts
    if not is_part and outline_rounds(tx.f_code, at.offset) is None:
        return
    if tx.parent is None:
        log.open_loop = tx.f_code, at.offset
        log.report_graph_break(f"{OPEN_LOOP} ({user_line()})")
    torch._dynamo.exc.unimplemented(
        gb_type=OPEN_LOOP,
        context=OPEN_LOOP,
        explanation="Each number of its rounds would be a capture.",
        hints=[],
        skip_frame=tx.parent is None,
    )
