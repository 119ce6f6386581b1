"""Python's random numbers in models of float64.

Dynamo has such a number as a tensor of float32. Where a graph computes in float64 it is one of float64 here,
and so is Python's arithmetic on it. All other results get the types that Dynamo knows.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from ortmodule_py.trace.record import is_traced

_ARITHMETIC: set[Callable[..., Any]] = {
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    operator.floordiv,
    operator.mod,
    operator.pow,
    operator.neg,
    operator.pos,
    operator.abs,
}


def in_double(gm: fx.GraphModule, drawn: Sequence[int]) -> list[int]:
    """Those of the `drawn` inputs that are float64 in eager PyTorch: floats, if anything else is float64."""
    inputs = gm.graph.find_nodes(op="placeholder")
    others = [_dtype(node) for i, node in enumerate(inputs) if i not in drawn]
    if torch.float64 not in others and torch.complex128 not in others:
        return []
    return [i for i in drawn if _dtype(inputs[i]) == torch.float32]


def in_eager_type(node: fx.Node, result: Any, doubles: set[fx.Node]) -> Any:
    """The result of a node in eager's type; the node joins `doubles` if it is arithmetic on these alone."""
    if doubles.isdisjoint(node.all_input_nodes) or not is_traced(result):
        return result
    if node.target in _ARITHMETIC and doubles.issuperset(node.all_input_nodes):
        doubles.add(node)
        return result
    known = _dtype(node)
    return result if known is None or known == result.dtype else result.to(known)


def _dtype(node: fx.Node) -> torch.dtype | None:
    example = node.meta.get("example_value")
    return example.dtype if isinstance(example, Tensor) else None
