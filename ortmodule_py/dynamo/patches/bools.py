"""Evaluates comparisons of symbolic numbers to Python bools, with a guard on the outcome.

Dynamo makes them a symbolic bool, which behaves differently: `is True` is false, `str` returns "1", and
indices and flags of torch do not accept it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import dynamo_output, patch


def _probe(trial: Trial) -> bool:
    x = torch.ones(3)
    numbers = (0.3, 0.7, 0.1)
    return trial(
        lambda: lambda x, t: x * (2 if (t > 0.5) is True else 1), *((x, t) for t in numbers)
    )


def _has_symbols(gm: fx.GraphModule) -> bool:
    """The graph need not contain the comparison, but Dynamo has symbols for its numbers."""
    output: Any = dynamo_output()
    return output is None or bool(output.shape_env.var_to_range)


@patch(
    "bools",
    "A comparison of numbers that change from call to call is a bool of Python.",
    "torch._dynamo.variables.tensor:SymNodeVariable.create",
    probe=_probe,
    needed_by=_has_symbols,
)
def _decided(create: Callable[..., Any], tx: Any, *args: Any, **kwargs: Any) -> Any:
    made = create(tx, *args, **kwargs)
    number = getattr(made, "sym_num", None)
    if not isinstance(number, torch.SymBool) or free_unbacked_symbols(number):
        return made  # depends on data, so it is unknown
    return torch._dynamo.variables.ConstantVariable.create(bool(number))  # guards on it
