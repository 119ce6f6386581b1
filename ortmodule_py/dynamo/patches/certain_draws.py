"""Decides conditions on a drawn number that have one outcome: `torch.rand(1) > self.module_dropout`, which is 0.

Dynamo breaks the graph there. Numbers of `rand` lie in [0, 1), and those of `random.uniform(a, b)` between its
bounds, so that some comparisons are always true or false. The engine's own numbers need not include 0, which
torch draws once in 16 million times.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch._dynamo.source import RandomValueSource

from ortmodule_py.dynamo.patches.conditions import decide
from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import capturing_compiler, patch

_LESS, _GREATER = ("lt", "le"), ("gt", "ge")
_MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
_COMPARISONS = {getattr(module, name): name for module in (operator, torch) for name in _MIRRORED}
_COMPARISONS |= {getattr(Tensor, name): name for name in _MIRRORED} | {n: n for n in _MIRRORED}
_DRAWS = (torch.rand, torch.rand_like)


def _probe(trial: Trial) -> bool:
    def kept(x: Tensor) -> Tensor:
        return x * 2 if torch.rand(1) >= 0.0 else x

    return trial(lambda: kept, (torch.ones(3),)) and not trial.graph_breaks


@patch(
    "certain_draws",
    "A condition on a drawn number breaks no graph if it has one outcome, as for a probability of 0.",
    {(2, 13): "torch._dynamo.symbolic_convert:InstructionTranslatorBase.step"},
    probe=_probe,
    needed_by=None,
)
def _step(step: Callable[..., Any], self: Any) -> Any:
    decide(self, lambda value: _outcome(self, value.as_proxy().node))
    return step(self)


def _outcome(tx: Any, condition: fx.Node) -> bool | None:
    """Whether a comparison of one drawn number with a constant is true; None for other conditions."""
    name = _COMPARISONS.get(condition.target)
    if name is None or len(condition.args) != 2 or condition.meta["example_value"].numel() != 1:
        return None
    drawn, bound = condition.args
    if isinstance(bound, fx.Node):
        drawn, bound, name = bound, drawn, _MIRRORED[name]
    limits = _range_of(tx, drawn) if isinstance(bound, (int, float)) else None
    if limits is None:
        return None
    if bound > limits.high or (bound == limits.high and (limits.below or name in ("le", "gt"))):
        return name in _LESS
    if bound < limits.low or (bound == limits.low and (limits.above or name in ("lt", "ge"))):
        return name in _GREATER
    return None


@dataclass
class _Range:
    """Where drawn numbers lie."""

    low: float
    high: float
    above: bool
    """They are greater than `low`, not equal."""
    below: bool


def _range_of(tx: Any, drawn: Any) -> _Range | None:
    if _is_draw(drawn):
        return _Range(0.0, 1.0, above=_is_of_engine(drawn), below=True)
    argument = drawn.meta.get("grapharg") if isinstance(drawn, fx.Node) else None
    source = getattr(argument, "source", None)
    if not isinstance(source, RandomValueSource):
        return None
    function, args, kwargs = tx.output.random_calls[source.random_call_index]
    if function == random.random:
        return _Range(0.0, 1.0, above=False, below=True)
    numbers = [*args, *kwargs.values()]
    if function not in (random.uniform, random.randint) or len(numbers) != 2:
        return None
    return _Range(min(numbers), max(numbers), above=False, below=False)


def _is_draw(node: Any) -> bool:
    """Whether this is a draw that nothing has changed since."""
    if not isinstance(node, fx.Node) or node.target not in _DRAWS:
        return False
    return bool(node.meta["example_value"]._version == 0) and "out" not in node.kwargs


def _is_of_engine(draw: fx.Node) -> bool:
    """Whether the engine draws its own numbers here, finely enough that 0 is as unlikely as any other."""
    compiler: Any = capturing_compiler()
    fine = draw.meta["example_value"].dtype in (torch.float32, torch.float64)
    return fine and not compiler.options.torch_rng
