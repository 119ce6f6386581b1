"""Breaks the graph at collectives of torch.distributed, so that eager PyTorch runs them.

Dynamo would put functional ones in their place, which copy where eager writes into the caller's
tensor, wait at another time, and have other gradients.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

FindCompiler = Callable[[Any], Any]
"""Our compiler that a Dynamo backend stands for, or None."""


@functools.cache
def install(find_compiler: FindCompiler) -> None:
    """Watch Dynamo's rewriting, which one private class of torch does."""
    functions = torch._dynamo.variables.functions
    rewrite: Any = getattr(functions, "CollectiveFunctionRewriteVariable", None)
    call_function = getattr(rewrite, "call_function", None)
    if call_function is None:
        return  # another torch: a piece with the functional ones is left to eager as a whole

    @functools.wraps(call_function)
    def refused(self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
        if find_compiler(getattr(tx.output, "compiler_fn", None)) is None:
            return call_function(self, tx, *args, **kwargs)
        torch._dynamo.exc.unimplemented(
            gb_type="collective of torch.distributed",
            context=f"{self.fn}",
            explanation="Eager PyTorch runs collectives, between the compiled pieces.",
            hints=[],
        )

    rewrite.call_function = refused
