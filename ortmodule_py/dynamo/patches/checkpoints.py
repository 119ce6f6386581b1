"""Captures `torch.utils.checkpoint.checkpoint_sequential`, which Dynamo does not trace, as its segments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.variables.base import VariableTracker
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import patch


def _probe(trial: Trial) -> bool:
    def segments(x: Tensor) -> Any:
        return checkpoint_sequential([torch.sin, torch.exp, torch.cos], 2, x, use_reentrant=False)

    same = trial(lambda: segments, (torch.ones(3, requires_grad=True),))
    return same and not trial.eager_pieces and not trial.graph_breaks


@patch(
    "checkpoints",
    "Models that call checkpoint_sequential are compiled.",
    "torch._dynamo.variables.functions:SkipFunctionVariable.call_function",
    probe=_probe,
    needed_by=None,
)
def _call(call: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    if self.value is not checkpoint_sequential:
        return call(self, tx, args, kwargs)
    return VariableTracker.build(tx, _in_segments).call_function(tx, list(args), kwargs)


def _in_segments(
    functions: Any, segments: int, input: Any, use_reentrant: bool = True, **options: Any
) -> Any:
    """As checkpoint_sequential: all segments but the last are checkpoints. Dynamo traces it."""
    layers = list(functions.children()) if isinstance(functions, nn.Sequential) else list(functions)
    length = len(layers) // segments
    last = length * (segments - 1)
    for start in range(0, last, length):
        run = _chained(layers[start : start + length])
        input = checkpoint(run, input, use_reentrant=use_reentrant, **options)
    return _chained(layers[last:])(input)


def _chained(layers: list[Any]) -> Callable[[Any], Any]:
    def run(value: Any) -> Any:
        for layer in layers:
            value = layer(value)
        return value

    return run
