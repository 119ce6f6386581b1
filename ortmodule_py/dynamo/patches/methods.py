"""Guards the methods of classes, which may be replaced between calls.

Dynamo takes a method from the class of an object, and its guards see that the class is the same one,
not what is in it: without this, a patched `forward` of a layer would stay without effect.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._dynamo import guards
from torch._dynamo.source import AttrSource, GlobalSource

FindCompiler = Callable[[Any], Any]
"""Our compiler that a Dynamo backend stands for, or None."""


@functools.cache
def install(find_compiler: FindCompiler) -> None:
    """Watch where Dynamo looks a method up, which is one private method of torch."""
    variable: Any = getattr(torch._dynamo.variables, "UserDefinedObjectVariable", None)
    look_up = getattr(variable, "get_source_by_walking_mro", None)
    output: Any = torch._dynamo.output_graph.OutputGraph
    if look_up is None or not hasattr(output, "install_global_by_id"):
        return  # another torch: replaced methods are not noticed

    takes_tx = "tx" in inspect.signature(look_up).parameters
    current: Any = torch._dynamo.symbolic_convert.InstructionTranslator.current_tx

    @functools.wraps(look_up)
    def watched(self: Any, *args: Any) -> Any:
        tx = args[0] if takes_tx else current()
        if find_compiler(getattr(tx.output, "compiler_fn", None)) is not None:
            _guard(tx.output, type(self.value), args[-1])
        return look_up(self, *args)

    variable.get_source_by_walking_mro = watched


def _guard(output: Any, cls: type, name: str) -> None:
    """See that `cls` still has this function. Once for all its instances: not by way of one of them,
    whose guards Dynamo skips while its attributes are the same."""
    function = inspect.getattr_static(cls, name, None)
    if not isinstance(function, types.FunctionType) or vars(nn.Module).get(name) is function:
        return
    known = GlobalSource(output.install_global_by_id("__class", cls))
    guards.install_guard(AttrSource(known, name).make_guard(guards.GuardBuilder.FUNCTION_MATCH))
