"""Breaks the graph at an `autograd.Function` whose backward gives what eager PyTorch refuses.

Dynamo takes the gradients that it knows a place for and drops the others: too few, too many and those
of arguments that are no tensors pass without a word, where eager raises.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

FindCompiler = Callable[[Any], Any]
"""Our compiler that a Dynamo backend stands for, or None."""


@functools.cache
def install(find_compiler: FindCompiler) -> None:
    """Watch where Dynamo assigns gradients to arguments, which one private method of torch does."""
    functions = torch._dynamo.variables.higher_order_ops
    variable: Any = getattr(functions, "AutogradFunctionApplyVariable", None)
    assign = getattr(variable, "rewire_bwd_graph_outputs", None)
    if assign is None:
        return  # another torch: such a function trains as Dynamo reads it

    @functools.wraps(assign)
    def checked(
        self: Any, freevars: Any, given: Any, graph: Any, bwd_freevars: Any, arguments: Any
    ) -> Any:
        tx: Any = torch._dynamo.symbolic_convert.InstructionTranslator.current_tx()
        ours = find_compiler(getattr(tx.output, "compiler_fn", None)) is not None
        wrong = _mistake(given, arguments) if ours else None
        if wrong is None:
            return assign(self, freevars, given, graph, bwd_freevars, arguments)
        torch._dynamo.exc.unimplemented(
            gb_type=f"the backward of an autograd.Function gives {wrong}",
            context=f"{self.bwd_fn}",
            explanation="Eager PyTorch raises an error when this backward runs.",
            hints=[],
        )

    variable.rewire_bwd_graph_outputs = checked


def _mistake(given: Any, arguments: Sequence[Any]) -> str | None:
    """What eager does not take as the gradients of these arguments: lists, and anything but a tensor
    or None for each of them; more than these may be None."""
    several = isinstance(given, torch._dynamo.variables.TupleVariable)
    gradients = list(given.items) if several else [given]
    places = len(arguments)
    if len(gradients) < places or not all(map(_is_none, gradients[places:])):
        return f"{len(gradients)} gradients for {places} arguments"
    for gradient, argument in zip(gradients, arguments, strict=False):
        if not _is_none(gradient) and not gradient.is_tensor():
            return "a gradient that is no tensor"
        if not _is_none(gradient) and not argument.is_tensor():
            return "a gradient for an argument that is no tensor"
    return None


def _is_none(variable: Any) -> bool:
    return bool(variable.is_python_constant()) and variable.as_python_constant() is None
