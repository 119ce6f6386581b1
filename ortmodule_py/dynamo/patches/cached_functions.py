"""Calls a function under `functools.lru_cache` as eager does, where its arguments are constants.

Dynamo traces the function itself, so it would run in each call. If its result is a number, a string or a
tensor, the cached one becomes an input of the graph, which each call looks up in the function's cache.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.source import CallFunctionNoArgsSource, GlobalSource
from torch._dynamo.variables.base import VariableTracker

from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import break_graph, dynamo_output, patch

_RESULTS = (Tensor, int, float, str)


def _probe(trial: Trial) -> bool:
    def make() -> Callable[[Tensor], Tensor]:
        calls: list[float] = []

        @functools.lru_cache
        def factor(power: int) -> float:
            calls.append(2.0)
            return sum(calls) ** power

        return lambda x: x * factor(2)

    return trial(make, *((torch.ones(3),) for _ in range(3)))


@patch(
    "cached_functions",
    "A function under functools.lru_cache is not called again for the same constants.",
    "torch._dynamo.variables.functions:WrapperUserFunctionVariable.call_function",
    probe=_probe,
    needed_by=lambda gm: True,  # the graph does not show which functions were inlined
)
def _call(call: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    cached = self.wrapper_obj
    given = (*args, *kwargs.values())
    if not hasattr(cached, "cache_info") or not all(a.is_python_constant() for a in given):
        return call(self, tx, args, kwargs)
    holders = [holder.realize() for holder in self.self_args()]
    if any(tx.output.side_effects.has_pending_mutation(holder) for holder in holders):
        break_graph(
            f"the method {cached.__name__}, under `functools.lru_cache`, of an object that forward changes",
            "Its cache may have a result of the object as it was before.",
        )
    if not all(getattr(h, "source", None) and hasattr(h, "value") for h in holders):
        return call(self, tx, args, kwargs)
    constants = tuple(a.as_python_constant() for a in args)
    named = {name: a.as_python_constant() for name, a in kwargs.items()}
    objects = [weakref.ref(holder.value) for holder in holders]

    def bound() -> Any:
        return cached(*(known() for known in objects), *constants, **named)

    result = bound()
    if not isinstance(result, _RESULTS):
        return call(self, tx, args, kwargs)
    for holder in holders:
        install_guard(holder.source.make_guard(GuardBuilder.ID_MATCH))
    output: Any = dynamo_output()
    source = CallFunctionNoArgsSource(GlobalSource(output.install_global_by_id("__cached", bound)))
    return VariableTracker.build(tx, result, source)
