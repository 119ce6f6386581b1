"""Captures sizes that follow from others by rounding, as `int(0.3 * n)` and `2 ** math.ceil(math.log2(n))`.

The engine computes sizes in integers. What it has no form for would be a capture for each size of a batch; here
each call computes it before the graph runs (`computed_sizes`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.variables import SymNodeVariable
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from ortmodule_py.base.changing_numbers import has_float
from ortmodule_py.base.errors import CannotLower
from ortmodule_py.dynamo.computed_sizes import call_of, computed_size
from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import patch
from ortmodule_py.lower.sizes.symbolic import dim_text


def _probe(trial: Trial) -> bool:
    def kept(x: Tensor) -> Tensor:
        return x[: int(0.3 * len(x))] * 2 ** math.ceil(math.log2(len(x)))

    return (
        trial(lambda: kept, *((torch.ones(rows),) for rows in (9, 12, 17))) and trial.captures == 1
    )


@patch(
    "rounded sizes",
    "A size that is computed of others by floats and rounded needs no new capture for other sizes.",
    {(2, 13): "torch._dynamo.variables.tensor:SymNodeVariable.create"},
    probe=_probe,
    needed_by=None,
)
def _create(
    create: Callable[..., Any], tx: Any, proxy: Any, sym_num: Any = None, **options: Any
) -> Any:
    made = create(tx, proxy, sym_num, **options)
    if not isinstance(made, SymNodeVariable):
        return made
    node = proxy.node
    if not node.op.startswith("call") or node.kwargs:
        return made
    if not isinstance(made.sym_num, torch.SymInt) or _has_form(made.sym_num):
        return made
    return computed_size(tx, *call_of(node)) or made


def _has_form(size: torch.SymInt) -> bool:
    """Whether the engine can compute it, or nobody can before the call."""
    if free_unbacked_symbols(size) or has_float(size.node.expr):
        return True
    try:
        dim_text(size.node.expr)
    except CannotLower:
        return False
    return True


def _probe_bits(trial: Trial) -> bool:
    def padded(x: Tensor) -> Tensor:
        return x.new_zeros(1 << (len(x) - 1).bit_length())

    return trial(lambda: padded, *((torch.ones(n),) for n in (5, 9, 12))) and trial.captures == 1


@patch(
    "bit_length",
    "`n.bit_length()` of a size needs no new capture for other sizes.",
    {(2, 13): "torch._dynamo.variables.tensor:SymNodeVariable.call_method"},
    probe=_probe_bits,
    needed_by=None,
)
def _call(call: Callable[..., Any], self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
    if name == "bit_length" and isinstance(self.sym_num, torch.SymInt):
        found = computed_size(tx, _bit_length, [self.as_proxy().node])
        if found is not None:
            return found
    return call(self, tx, name, args, kwargs)


def _bit_length(n: int) -> int:
    return n.bit_length()
