"""Where Dynamo's fake tensors may say other strides, or another length, than eager has."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, fx

from ortmodule_py.trace.strides.eager import is_row_major


def is_restrided_dropout(node: fx.Node) -> bool:
    """Dynamo takes a dropout that draws nothing for a copy, which has strides of its own; in eager it
    is the tensor itself."""
    if node.target not in (torch.nn.functional.dropout, torch.dropout) or not node.args:
        return False
    operand, result = (n.meta.get("example_value") for n in (node.args[0], node))
    return isinstance(operand, Tensor) and operand.stride() != result.stride()


_MAX_POOLS_1D = (torch.max_pool1d, torch.nn.functional.max_pool1d)
_DOUBTFUL = {
    *_MAX_POOLS_1D,
    torch.pow,
    torch.roll,
    operator.pow,
    torch.batch_norm,
    torch.nn.functional.batch_norm,
    torch.nn.functional.instance_norm,
    torch.nn.functional.interpolate,
    torch.nn.functional.logsigmoid,
    torch.copysign,
    torch.logical_and,
    torch.logical_or,
    torch.logical_xor,
    torch.xlogy,
    torch.special.xlogy,
    "copysign",
    "logical_and",
    "logical_or",
    "logical_xor",
    "xlogy",
    "pow",
    "roll",
    "__rpow__",
}


def is_doubtful(node: fx.Node) -> bool:
    """Whether fake tensors may say other strides than eager, as they do for some operators."""
    return node.target in _DOUBTFUL and not all(
        is_row_major(n.meta.get("example_value")) for n in node.all_input_nodes
    )


def is_pooled_by_rows(node: fx.Node, result: Any) -> bool:
    """Whether eager takes the kernel of `max_pool1d` that has no gradient, on the CPU: its result is
    row-major (ATen/native/Pooling.cpp), where one of fake tensors follows the operand."""
    if node.target not in _MAX_POOLS_1D or not isinstance(result, Tensor):
        return False
    has_gradient = node.meta["example_value"].requires_grad
    return not has_gradient and result.device.type == "cpu" and not is_row_major(result)


def is_range_of_floats(node: fx.Node) -> bool:
    """Its length goes through floating point in Dynamo's graph; see `_of_integers`."""
    given = (*node.args, *node.kwargs.values())
    return node.target is torch.arange and any(isinstance(value, float) for value in given)
