"""Graph breaks: the reason, and the dynamic sizes that inputs and the piece before pass to a function."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import fx
from torch._dynamo import maybe_mark_dynamic
from torch._guards import TracingContext

from ortmodule_py.base.tree import tensors
from ortmodule_py.dynamo.reasons import innermost_line, reason_in_words

UNIT = "FSDP2 gathers or frees the parameters of a unit of `fully_shard`"
"""A reason that is as the user wants it: the units are pieces of their own."""
OPEN_LOOP = "a loop over a size that changes from call to call"
OPEN_LIST = "a list of tensors whose length or sizes change from call to call"
_FULLY_SHARD = os.path.join("distributed", "fsdp", "_fully_shard")


def graph_break_of(gm: fx.GraphModule) -> str | None:
    """The reason and source line of the graph break that ended this piece; None if it ends with the function."""
    return graph_break_in_words(getattr(gm, "compile_subgraph_reason", None))


def graph_break_in_words(why: Any) -> str | None:
    """Reason and source line of what Dynamo ended a capture for; None if that is no graph break."""
    if why is None or not getattr(why, "graph_break", False):
        return None
    stack = list(getattr(why, "user_stack", None) or ())
    line = innermost_line(stack)
    of_unit = any(os.path.dirname(frame.filename).endswith(_FULLY_SHARD) for frame in stack)
    reason = UNIT if of_unit else reason_in_words(str(why.reason))
    return reason + (f" ({line})" if line else "")


def user_line() -> str:
    """The innermost line of the user's code that Dynamo traces at the moment."""
    return innermost_line(list(TracingContext.extract_stack()))


def changing_sizes(gm: fx.GraphModule) -> list[tuple[int, list[int]]]:
    """(output, dims) of the outputs with symbolic sizes."""
    (output,) = gm.graph.find_nodes(op="output")
    found = []
    for position, value in enumerate(output.args[0]):
        known = value.meta.get("example_value") if isinstance(value, fx.Node) else None
        if isinstance(known, torch.Tensor):
            dims = [d for d, size in enumerate(known.shape) if isinstance(size, torch.SymInt)]
            found += [(position, dims)] if dims else []
    return found


def mark_changing_sizes(
    run: Callable[..., Any], changing: list[tuple[int, list[int]]]
) -> Callable[..., Any]:
    """`run`, which marks these sizes of its outputs as dynamic for the resume function.

    Otherwise the piece after a graph break is specialized for the first batch, and recompiled for
    each size that turns out to change.
    """
    if not changing:
        return run

    def marking(*args: Any) -> Any:
        outputs = run(*args)
        for position, dims in changing:
            value = outputs[position]
            for dim in dims:
                if value.shape[dim] > 1:
                    maybe_mark_dynamic(value, dim)
        return outputs

    return marking


def mark_input_sizes(arguments: Iterable[Any]) -> None:
    """Mark the sizes of tensors that may change from batch to batch.

    These are dim 0, also dim 1 of floats with three (sequences: batch, time, features), and all of integers.
    """
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            _mark(argument)
        elif isinstance(argument, (dict, list, tuple)):
            for tensor in tensors(argument):
                _mark(tensor)


def _mark(tensor: torch.Tensor) -> None:
    shape = tensor.shape if not tensor.is_nested else ()
    if not shape or (type(tensor) is not torch.Tensor and isinstance(tensor, torch.nn.Parameter)):
        return
    changing = len(shape)
    if tensor.is_floating_point():
        changing = 2 if len(shape) == 3 else 1
    for dim in range(changing):
        if shape[dim] > 1:
            maybe_mark_dynamic(tensor, dim)
