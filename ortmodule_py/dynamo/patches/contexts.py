"""Breaks the graph where a user's `autograd.Function` wants no zeros for gradients that are absent.

Dynamo runs `ctx.set_materialize_grads(False)` and forgets it: backward would get zeros for None, and
what it gives for None would be lost. Behind a graph break eager PyTorch runs the function.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

FindCompiler = Callable[[Any], Any]
"""Our compiler that a Dynamo backend stands for, or None."""

_METHOD = "set_materialize_grads"


@functools.cache
def install(find_compiler: FindCompiler) -> None:
    """Let Dynamo refuse this method of a context, as it does all methods that it does not know."""
    variables = torch._dynamo.variables
    context: Any = getattr(variables, "AutogradFunctionContextVariable", None)
    made: Any = getattr(variables, "LambdaVariable", None)
    var_getattr = getattr(context, "var_getattr", None)
    if var_getattr is None or made is None:
        return  # another torch: such functions get zeros

    @functools.wraps(var_getattr)
    def read(self: Any, tx: Any, name: str) -> Any:
        if name != _METHOD or find_compiler(getattr(tx.output, "compiler_fn", None)) is None:
            return var_getattr(self, tx, name)
        return made(lambda *args, **kwargs: self.call_method(tx, name, list(args), kwargs))

    context.var_getattr = read
