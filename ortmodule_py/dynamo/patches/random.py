"""Breaks the graph where a `random.Random` of the user's draws.

Dynamo makes the state that it has at the capture a constant, so that every call would draw the same
numbers. Behind a graph break eager PyTorch draws. The functions of `random` stay in the graph, and so
does a generator that forward itself makes.
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
    """Let Dynamo refuse the methods of such a generator."""
    variable: Any = getattr(torch._dynamo.variables, "RandomVariable", None)
    call_method = getattr(variable, "call_method", None)
    if call_method is None or not hasattr(torch._dynamo.exc, "unimplemented"):
        return  # another torch, of which nothing is known

    @functools.wraps(call_method)
    def call(self: Any, tx: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        made_here = getattr(self, "source", None) is None
        if made_here or find_compiler(getattr(tx.output, "compiler_fn", None)) is None:
            return call_method(self, tx, name, *args, **kwargs)
        torch._dynamo.exc.unimplemented(
            gb_type="method of a random.Random",
            context=name,
            explanation="its state at the capture would be a constant of the graph",
            hints=["`random.random()` and the other functions of `random` stay in the graph."],
        )

    variable.call_method = call
