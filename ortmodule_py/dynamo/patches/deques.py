"""Passes the `maxlen` of a user's `collections.deque` to Dynamo, which assumes that there is none.

Dynamo then breaks the graph at changes of such a deque.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch._dynamo import guards
from torch._dynamo.source import AttrSource

from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import patch, used_objects


def _probe(trial: Trial) -> bool:
    def make() -> Callable[[Tensor], Tensor]:
        seen: collections.deque[float] = collections.deque([1.0, 2.0], maxlen=2)

        def of_last(x: Tensor) -> Tensor:
            seen.append(seen[-1] + 1.0)
            return x * sum(seen)

        return of_last

    return trial(make, *((torch.ones(3),) for _ in range(3)))


def _has_limited_ones(gm: fx.GraphModule) -> bool:
    return any(isinstance(o, collections.deque) and o.maxlen is not None for o in used_objects())


@patch(
    "deques",
    "A collections.deque with a maxlen drops the items beyond it.",
    # Not `wrap_listlike`: from its first capture on Dynamo has it in a dispatch table.
    "torch._dynamo.variables.builder:VariableBuilder._wrap",
    probe=_probe,
    needed_by=_has_limited_ones,
)
def _wrapped(wrap: Callable[..., Any], self: Any, value: Any) -> Any:
    made = wrap(self, value)
    if type(value) is collections.deque and hasattr(made, "maxlen"):
        limit = AttrSource(self.source, "maxlen")
        guards.install_guard(limit.make_guard(guards.GuardBuilder.CONSTANT_MATCH))
        made.maxlen = torch._dynamo.variables.ConstantVariable.create(value.maxlen)
    return made
