"""Makes a comparison that Dynamo traces for us a bool of Python.

Of numbers that change Dynamo makes symbols, and of a comparison of them a symbol too, which is no
bool: `is True` is false, `str` gives "1", an index or a flag of torch's refuses it.
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
    numbers = (0.3, 0.7, 0.9, 0.1)
    return trial(
        lambda: lambda x, t: x * (2 if (t > 0.5) is True else 1), *((x, t) for t in numbers)
    )


def _has_symbols(gm: fx.GraphModule) -> bool:
    """A comparison need not be left in the graph, but its numbers are known to Dynamo's symbols."""
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
        return made  # what only the data decide is not known yet
    # Leaves a guard on the outcome.
    return torch._dynamo.variables.ConstantVariable.create(bool(number))
