"""Guards on methods of classes, which may be replaced between calls.

Dynamo guards on the class of an object, but not on the methods that it inlines from the class: without
this, a patched `forward` of a layer would have no effect.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo import guards
from torch._dynamo.source import AttrSource, GlobalSource

from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import dynamo_output, patch


def _probe(trial: Trial) -> bool:
    def make() -> nn.Module:
        class Scale:
            def of(self, x: Tensor) -> Tensor:
                return x * 2

        class Scaled(nn.Module):
            scale = Scale()

            def forward(self, x: Tensor) -> Tensor:
                return self.scale.of(x)

        return Scaled()

    def replace(made: Any) -> None:
        type(made.scale).of = lambda self, x: x * 3

    return trial(make, (torch.ones(3),), (torch.ones(3),), between=replace)


@patch(
    "methods",
    "A method of a class that is replaced between calls takes effect.",
    "torch._dynamo.variables.user_defined:UserDefinedObjectVariable.get_source_by_walking_mro",
    probe=_probe,
    needed_by=lambda gm: True,  # the graph does not show which methods were inlined
)
def _watched(look_up: Callable[..., Any], self: Any, *args: Any) -> Any:
    _guard(dynamo_output(), type(self.value), args[-1])
    return look_up(self, *args)


def _guard(output: Any, cls: type, name: str) -> None:
    """Guard on this function of `cls`.

    The source is the class, not an instance: Dynamo skips guards of an instance with the same dict.
    """
    function = inspect.getattr_static(cls, name, None)
    if not isinstance(function, types.FunctionType) or vars(nn.Module).get(name) is function:
        return
    known = GlobalSource(output.install_global_by_id("__class", cls))
    guards.install_guard(AttrSource(known, name).make_guard(guards.GuardBuilder.FUNCTION_MATCH))
