"""Calls on tensors with sizes such as `(n + 1) // 2` leave torch's cache of fake tensors alone.

For each entry torch makes the result a second time, to see whether it may be cached. Where sizes hold divisions,
that takes longer than what later calls save: half of the capture of a transformer of windows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import sympy
import torch
from torch import SymInt, Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import patch

_CALLS = 40


def _probe(trial: Trial) -> bool:
    def scaled(x: Tensor) -> Tensor:
        y = x[: len(x) // 3]
        for i in range(_CALLS):
            y = y * (i + 2)
        return y

    before = FakeTensorMode.cache_misses
    same = trial(lambda: scaled, (torch.ones(6),))
    return same and FakeTensorMode.cache_misses < before + _CALLS


@patch(
    "derived_sizes",
    "Captures with sizes that are quotients take less time.",
    "torch._subclasses.fake_tensor:FakeTensorMode._cached_dispatch_impl",
    probe=_probe,
    needed_by=None,
)
def _dispatch(
    dispatch: Callable[..., Any], self: Any, func: Any, types: Any, args: Any, kwargs: Any
) -> Any:
    if any(map(_has_derived, args)) or any(map(_has_derived, kwargs.values())):
        return self._dispatch_impl(func, types, args, kwargs)
    return dispatch(self, func, types, args, kwargs)


def _has_derived(value: Any) -> bool:
    """Whether it holds a size that is more than sums and products of symbols."""
    if isinstance(value, Tensor):
        return any(map(_has_derived, value.shape))
    if isinstance(value, SymInt):
        return _is_derived(value.node.expr)
    return isinstance(value, (list, tuple)) and any(map(_has_derived, value))


@functools.lru_cache(maxsize=10_000)
def _is_derived(expression: Any) -> bool:
    plain = (sympy.Symbol, sympy.Number, sympy.Add, sympy.Mul, sympy.Pow)
    return not all(isinstance(part, plain) for part in sympy.preorder_traversal(expression))
