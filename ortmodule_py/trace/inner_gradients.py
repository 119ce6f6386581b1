"""Gradients that forward computes itself, by `torch.autograd.grad` or a transform of torch.func.

Torch's autograd runs during the trace, from the values whose gradient is asked for, and its calls are recorded
like those of forward: what differentiates the piece then differentiates them, too.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from ortmodule_py.trace.record import last_recorded, may_require_gradient, recorded_graph

NOT_DIFFERENTIATED = "not_differentiated"
"""Marks the nodes of a gradient that is not differentiated again."""


def has_inner_gradients(gm: fx.GraphModule) -> bool:
    """Whether the graph, or a body of an operator in it, computes gradients."""
    of_transform = torch._C._functorch._grad_increment_nesting
    return calls_autograd_grad(gm) or any(_calls(graph, of_transform) for graph in _graphs(gm))


def calls_autograd_grad(gm: fx.GraphModule) -> bool:
    """Whether the graph, or a body of an operator in it, calls `torch.autograd.grad`."""
    return any(_calls(graph) for graph in _graphs(gm))


def sources_of_inner_gradients(graph: fx.Graph) -> frozenset[fx.Node]:
    """The values whose gradient the graph asks for."""
    found: list[fx.Node] = []
    for node in _calls(graph):
        wanted = node.args[1] if len(node.args) > 1 else node.kwargs["inputs"]
        fx.map_arg(wanted, found.append)
    return frozenset(found)


def require_gradient(value: Any) -> None:
    """Begin to note what is computed from a traced value."""
    if may_require_gradient(value) and not value.requires_grad:
        value.requires_grad_()


@contextlib.contextmanager
def needing_no_gradient(inputs: Sequence[Any]) -> Iterator[None]:
    """Take inputs for ones that need no gradient: torch's autograd follows only what forward asks for."""
    changed = [x for x in inputs if isinstance(x, Tensor) and x.requires_grad and x.is_leaf]
    for x in changed:
        x.requires_grad_(False)
    try:
        yield
    finally:
        for x in changed:
            x.requires_grad_()


def require_gradient_of_level(value: Tensor) -> Tensor:
    """The same for a value of a transform of torch.func, which forbids it to others."""
    allowed = torch._C._functorch.get_inplace_requires_grad_allowed()
    torch._C._functorch.set_inplace_requires_grad_allowed(True)
    try:
        return value.requires_grad_()
    finally:
        torch._C._functorch.set_inplace_requires_grad_allowed(allowed)


@contextlib.contextmanager
def autograd_of(enabled: bool) -> Iterator[None]:
    """A context for one node of a graph with inner gradients, on this thread as it has the recording modes."""
    with torch.set_grad_enabled(enabled), torch.autograd.set_multithreading_enabled(False):
        yield


def inner_gradient(*args: Any, **kwargs: Any) -> Any:
    """The call of `torch.autograd.grad` on traced values."""
    create_graph = kwargs.get("create_graph") or (len(args) > 4 and args[4])
    before = last_recorded()
    found = torch.autograd.grad(*args, **{**kwargs, "retain_graph": True})
    if create_graph:
        return found
    backwards = reversed(recorded_graph().nodes)
    for node in itertools.takewhile(lambda node: node is not before, backwards):
        node.meta[NOT_DIFFERENTIATED] = True
    return tuple(None if gradient is None else gradient.detach() for gradient in found)


def with_user_backward(
    backward: Callable[..., list[Any]],
    outs: Sequence[Tensor],
    inputs: Sequence[Tensor],
    saved: Sequence[Any],
) -> Sequence[Tensor]:
    """`outs` with a backward of the user's for torch's autograd, which gets their gradients and the saved values."""
    if not any(value.requires_grad for value in inputs):
        return outs
    marked: Sequence[Tensor] = _UserBackward.apply(backward, outs, len(inputs), *inputs, *saved)
    return marked


class _UserBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, backward: Any, outs: Any, count: int, *given: Any) -> Any:
        ctx.backward_of_user, ctx.numbers = backward, given[count:]
        ctx.save_for_backward(*(value for value in given[count:] if isinstance(value, Tensor)))
        return tuple(out.view_as(out) for out in outs)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        tensors = iter(ctx.saved_tensors)
        saved = [next(tensors) if isinstance(x, Tensor) else x for x in ctx.numbers]
        found = ctx.backward_of_user(*gradients, *saved)
        return None, None, None, *found, *(None for _ in saved)


def _graphs(gm: fx.GraphModule) -> Iterator[fx.Graph]:
    return (graph.graph for graph in gm.modules() if isinstance(graph, fx.GraphModule))


def _calls(graph: fx.Graph, function: Any = torch.autograd.grad) -> list[fx.Node]:
    return list(graph.find_nodes(op="call_function", target=function))
