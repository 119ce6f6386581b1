"""Breaks the graph at an `autograd.Function` that Dynamo reads otherwise than eager PyTorch does.

Dynamo takes the gradients that it knows a place for and drops the others: too few, too many and those
of arguments that are no tensors pass without a word, where eager raises. Of what forward gives it makes
a tuple, where eager hands on a list or a dict as it is, without gradients.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

_traced: Any = getattr(
    torch._functorch.autograd_function, "DynamoAutogradFunctionTraceHelper", None
)
_NO_TUPLE = "an autograd.Function whose forward gives no tensor and no tuple"

FindCompiler = Callable[[Any], Any]
"""Our compiler that a Dynamo backend stands for, or None."""


@functools.cache
def install(find_compiler: FindCompiler) -> None:
    """Watch Dynamo's reading of these functions, which private methods of torch do."""
    functions = torch._dynamo.variables.higher_order_ops
    variable: Any = getattr(functions, "AutogradFunctionApplyVariable", None)
    if hasattr(variable, "rewire_bwd_graph_outputs"):  # in another torch, as Dynamo reads it
        _watch_gradients(variable, find_compiler)
    if hasattr(variable, "trace_forward_graph") and hasattr(_traced, "fwd_trace_helper"):
        _watch_outputs(variable, find_compiler)


def _watch_gradients(variable: Any, find_compiler: FindCompiler) -> None:
    assign = variable.rewire_bwd_graph_outputs

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


def _watch_outputs(variable: Any, find_compiler: FindCompiler) -> None:
    trace, wrap = variable.trace_forward_graph, _traced.fwd_trace_helper

    def wrap_checked(forward: Callable[..., Any]) -> Any:
        def checked(*args: Any, **kwargs: Any) -> Any:  # Dynamo traces it
            outputs = forward(*args, **kwargs)
            if not isinstance(outputs, (torch.Tensor, tuple)):
                torch._dynamo.graph_break(msg=_NO_TUPLE)
            return outputs

        return wrap(checked)

    @functools.wraps(trace)
    def watched(self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
        if find_compiler(getattr(tx.output, "compiler_fn", None)) is None:
            return trace(self, tx, *args, **kwargs)
        plain = vars(_traced)["fwd_trace_helper"]
        _traced.fwd_trace_helper = staticmethod(wrap_checked)
        try:
            return trace(self, tx, *args, **kwargs)
        except torch._dynamo.exc.Unsupported as error:
            if _NO_TUPLE not in str(error):
                raise
        finally:
            _traced.fwd_trace_helper = plain
        # Said once more, with the user's line in place of the one above.
        torch._dynamo.exc.unimplemented(
            gb_type=_NO_TUPLE,
            context=f"{self.fwd_fn}",
            explanation="Eager PyTorch hands it on without gradients.",
            hints=[],
        )

    variable.trace_forward_graph = watched


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
