"""Guards the methods of classes, which may be replaced between calls.

Dynamo takes a method from the class of an object, and its guards see that the class is the same one,
not what is in it: without this, a patched `forward` of a layer would stay without effect.
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
    needed_by=lambda gm: True,  # what a graph was traced from cannot be told from it
)
def _watched(look_up: Callable[..., Any], self: Any, *args: Any) -> Any:
    _guard(dynamo_output(), type(self.value), args[-1])
    return look_up(self, *args)


def _guard(output: Any, cls: type, name: str) -> None:
    """See that `cls` still has this function. Once for all its instances: not by way of one of them,
    whose guards Dynamo skips while its attributes are the same."""
    function = inspect.getattr_static(cls, name, None)
    if not isinstance(function, types.FunctionType) or vars(nn.Module).get(name) is function:
        return
    known = GlobalSource(output.install_global_by_id("__class", cls))
    guards.install_guard(AttrSource(known, name).make_guard(guards.GuardBuilder.FUNCTION_MATCH))
