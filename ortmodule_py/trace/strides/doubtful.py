"""Where Dynamo's fake tensors may say other strides, or another length, than eager has."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from ortmodule_py.base.changing_numbers import call_name
from ortmodule_py.trace.strides.eager import is_row_major


def is_restrided_dropout(node: fx.Node) -> bool:
    """Dynamo takes a dropout that draws nothing for a copy, which has strides of its own; in eager it
    is the tensor itself."""
    if node.target not in (torch.nn.functional.dropout, torch.dropout) or not node.args:
        return False
    operand, result = (n.meta.get("example_value") for n in (node.args[0], node))
    return isinstance(operand, Tensor) and operand.stride() != result.stride()


_DOUBTFUL = {
    *("__rpow__", "batch_norm", "copysign", "instance_norm", "interpolate", "log_sigmoid"),
    *("logical_and", "logical_or", "logical_xor", "max_pool1d", "max_unpool2d", "pow", "roll"),
    *("special_xlogy", "xlogy"),
}


def is_doubtful(node: fx.Node) -> bool:
    """Whether fake tensors may say other strides than eager, as they do for some operators."""
    return call_name(node.target) in _DOUBTFUL and not all(
        is_row_major(n.meta.get("example_value")) for n in node.all_input_nodes
    )


def is_pooled_by_rows(node: fx.Node, result: Any) -> bool:
    """Whether eager takes the kernel of `max_pool1d` that has no gradient, on the CPU: its result is
    row-major (ATen/native/Pooling.cpp), where one of fake tensors follows the operand."""
    if call_name(node.target) != "max_pool1d" or not isinstance(result, Tensor):
        return False
    has_gradient = node.meta["example_value"].requires_grad
    return not has_gradient and result.device.type == "cpu" and not is_row_major(result)


def is_range_of_floats(node: fx.Node) -> bool:
    """Its length goes through floating point in Dynamo's graph; see `range_of_integers`."""
    given = (*node.args, *node.kwargs.values())
    return node.target is torch.arange and any(isinstance(value, float) for value in given)
