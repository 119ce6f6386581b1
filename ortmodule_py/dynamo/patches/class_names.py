"""Reads the `__module__` of a class as the string that it is.

Dynamo keeps it as an attribute that it does not know for some classes, such as that of a parameter, and breaks
the graph where the string is used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import LOAD_ATTRIBUTE, patch


def _probe(trial: Trial) -> bool:
    weight = nn.Parameter(torch.ones(3))

    def scaled(x: Tensor) -> Tensor:
        y = x * 2
        asked = getattr(type(weight), "__module__")  # noqa: B009
        return y * (3 if "torch" in asked and "torch" in type(weight).__module__ else 1)

    same = trial(lambda: scaled, (torch.ones(3),))
    return same and not trial.eager_pieces and not trial.graph_breaks


@patch(
    "class_names",
    "Models that read the `__module__` of a class by `getattr` are compiled.",
    {(2, 13): "torch._dynamo.variables.builtin:GetAttrBuiltinVariable.call_function"},
    probe=_probe,
    needed_by=None,
)
def _get(call: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    return _known_name(call(self, tx, args, kwargs), args[0], args[1])


@patch(
    "loaded_class_names",
    "Models that write `type(value).__module__` are compiled.",
    {(2, 14): LOAD_ATTRIBUTE},
    probe=_probe,
    needed_by=None,
)
def _load(load: Callable[..., Any], self: Any, attr: Any) -> Any:
    if attr != "__module__":
        load(self, attr)
        return
    holder = self.stack[-1].realize()
    load(self, attr)
    name = torch._dynamo.variables.ConstantVariable.create(attr)
    self.stack[-1] = _known_name(self.stack[-1], holder, name)


def _known_name(result: Any, holder: Any, name: Any) -> Any:
    """The string for a `__module__` that Dynamo does not know; other results as they are."""
    try:
        # The name first: to ask what an attribute is, or an object for its value, guards all that is in it.
        if name.as_python_constant() != "__module__":
            return result
        cls = holder.as_python_constant()
    except NotImplementedError:  # known at run time only
        return result
    unknown = isinstance(result, torch._dynamo.variables.GetAttrVariable)
    if not unknown or not isinstance(cls, type):
        return result
    return torch._dynamo.variables.ConstantVariable.create(cls.__module__)
