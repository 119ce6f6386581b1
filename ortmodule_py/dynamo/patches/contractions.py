"""Captures contractions by the package opt_einsum as `torch.einsum`, as neural operators (tensorly) have them.

The package searches for an order of the products with sizes as numbers, and asks which thread it is in: the graph
breaks in each call. `torch.einsum` asks the package itself (`einsum_paths`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.variables import ConstantVariable
from torch._dynamo.variables.base import VariableTracker

from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import patch

_EXPRESSION = "opt_einsum.contract", "__call__"
_CONTRACTIONS = {
    _EXPRESSION,
    ("opt_einsum.contract", "contract"),
    ("tensorly.plugins", "cached_einsum"),
}
"""Functions of an equation and tensors, by module and name, and the call of a contraction whose order is known."""
_ONLY_ORDER = {"optimize", "use_blas", "memory_limit"}
"""Options that decide about nothing else."""
_EQUATION = re.compile(r"[A-Za-z., ]*(->[A-Za-z., ]*)?")


def _probe(trial: Trial) -> bool:
    def contract(equation: str, *operands: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return torch.einsum(equation, *operands)

    contract.__module__ = "opt_einsum.contract"
    same = trial(lambda: lambda x: contract("ij,ik->jk", x.sin(), x), (torch.ones(2, 3),))
    return same and not trial.graph_breaks and trial.captures == 1


@patch(
    "contractions",
    "`opt_einsum.contract` of tensors is captured.",
    "torch._dynamo.variables.functions:UserFunctionVariable.call_function",
    probe=_probe,
    needed_by=None,
)
def _call(call: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    name = getattr(self.fn, "__module__", ""), getattr(self.fn, "__name__", "")
    found = _contracted(tx, name, self, args, kwargs) if name in _CONTRACTIONS else None
    return call(self, tx, args, kwargs) if found is None else found


def _contracted(
    tx: Any,
    name: tuple[str, str],
    function: Any,
    args: Sequence[Any],
    options: Mapping[str, Any],
) -> VariableTracker | None:
    """The result; None for other arguments and options."""
    if name == _EXPRESSION:
        holder = getattr(function, "obj", None)
        if holder is None or len(_attribute(tx, holder, "_constants_dict").realize().items):
            return None
        args = [_attribute(tx, holder, "contraction"), *args]
    equation, *operands = (arg.realize() for arg in args)
    known = equation.is_python_constant() and isinstance(equation.as_python_constant(), str)
    if not known or not _EQUATION.fullmatch(equation.as_python_constant()):
        return None
    if not operands or not all(operand.is_tensor() for operand in operands):
        return None
    if set(options) - _ONLY_ORDER:
        return None
    einsum = VariableTracker.build(tx, torch.einsum)
    return einsum.call_function(tx, [equation, *operands], {})


def _attribute(tx: Any, of: VariableTracker, name: str) -> Any:
    read = VariableTracker.build(tx, getattr)
    return read.call_function(tx, [of, ConstantVariable.create(name)], {})
