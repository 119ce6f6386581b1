"""Breaks the graph at an `autograd.Function` that Dynamo traces differently from eager PyTorch.

If backward returns too few or too many gradients, or gradients for arguments that are no tensors, eager
raises, and Dynamo silently accepts it. If forward returns a list or a dict, Dynamo makes it a
tuple, and eager returns it as it is, without gradients.

A function that takes one tensor twice breaks no graph: the second time it takes a view of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import break_graph, calls_named, patch

_traced: Any = getattr(
    torch._functorch.autograd_function, "DynamoAutogradFunctionTraceHelper", None
)
_APPLY = "torch._dynamo.variables.higher_order_ops:AutogradFunctionApplyVariable"
_NO_TUPLE = "an autograd.Function whose forward returns neither a tensor nor a tuple"


def applies_function(gm: fx.GraphModule) -> bool:
    """Whether an autograd.Function is part of the graph, forward and backward."""
    return calls_named(gm, {"autograd_function_apply"})


class _OneGradientShort(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        return x * 2 + y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad * 2


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, y = ctx.saved_tensors
        return grad * y, grad * x


class _GivesList(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        return [x * 2]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad * 2


def _probe_gradients(trial: Trial) -> bool:
    x = torch.ones(3, requires_grad=True)
    return trial(lambda: lambda x: _OneGradientShort.apply(x, x * 3).tanh(), (x,))


def _probe_outputs(trial: Trial) -> bool:
    x = torch.ones(3, requires_grad=True)
    return trial(lambda: lambda x: _GivesList.apply(x)[0].tanh() + 1, (x,))


def _probe_arguments(trial: Trial) -> bool:
    x = torch.ones(3, requires_grad=True)
    same = trial(lambda: lambda x: _Product.apply(x, x).tanh(), (x,))
    return same and not trial.graph_breaks


@patch(
    "autograd_function_arguments",
    "An autograd.Function that takes one tensor twice breaks no graph.",
    {(2, 13): f"{_APPLY}.call_function"},
    probe=_probe_arguments,
    needed_by=None,
)
def _called(call: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    seen: set[fx.Node] = set()
    apart = []
    for argument in args:
        if argument.is_tensor():
            node = argument.as_proxy().node
            if node in seen:
                argument = argument.call_method(tx, "view_as", [argument], {})
            seen.add(node)
        apart.append(argument)
    return call(self, tx, apart, kwargs)


@patch(
    "autograd_function_gradients",
    "A backward of an autograd.Function that returns a wrong number of gradients raises as in eager PyTorch.",
    {(2, 11): f"{_APPLY}.rewire_bwd_graph_outputs"},
    probe=_probe_gradients,
    needed_by=applies_function,
)
def _checked(
    rewire: Callable[..., Any],
    self: Any,
    fwd_freevars: Any,
    bwd_out: Any,
    bwd_graph: Any,
    bwd_freevars: Any,
    orig_fwd_args: Any,
) -> Any:
    wrong = _mistake(bwd_out, orig_fwd_args)
    if wrong is None:
        return rewire(self, fwd_freevars, bwd_out, bwd_graph, bwd_freevars, orig_fwd_args)
    break_graph(
        f"the backward of an autograd.Function returns {wrong}",
        "Eager PyTorch raises an error when this backward runs.",
    )


@patch(
    "autograd_function_outputs",
    "Outputs that the forward of an autograd.Function returns in a list or a dict have no gradient.",
    {(2, 11): f"{_APPLY}.trace_forward_graph"},
    probe=_probe_outputs,
    needed_by=applies_function,
)
def _watched(trace: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    plain = vars(_traced)["fwd_trace_helper"]
    wrap = _traced.fwd_trace_helper

    def wrap_checked(forward: Callable[..., Any]) -> Any:
        def checked(*args: Any, **kwargs: Any) -> Any:  # Dynamo traces it
            outputs = forward(*args, **kwargs)
            if not isinstance(outputs, (torch.Tensor, tuple)):
                torch._dynamo.graph_break(msg=_NO_TUPLE)
            return outputs

        return wrap(checked)

    _traced.fwd_trace_helper = staticmethod(wrap_checked)
    try:
        return trace(self, *args, **kwargs)
    except torch._dynamo.exc.Unsupported as error:
        if _NO_TUPLE not in str(error):
            raise
    finally:
        _traced.fwd_trace_helper = plain
    # Raised again, so that it has the user's line instead of the one above.
    break_graph(_NO_TUPLE, "Eager PyTorch returns it without gradients.")


def _mistake(given: Any, arguments: Sequence[Any]) -> str | None:
    """Why eager would not accept these gradients of the arguments, or None.

    It accepts a tuple with a tensor or None for each argument; further ones must be None.
    """
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
