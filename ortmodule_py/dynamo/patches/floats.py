"""Keeps Dynamo from specializing the floats of calls that `float_arguments` can rewrite.

Dynamo runs each call on fake tensors. If torch converts a symbolic number to a C++ double there, this
adds a guard on its value, and each further value is a capture.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols, statically_known_true
from torch.nn import functional
from torch.utils import _pytree as pytree

from ortmodule_py.base.changing_numbers import (
    SIZE,
    call_name,
    changes,
    has_float,
    value_now,
    values_in,
)
from ortmodule_py.base.errors import origin_of
from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import break_graph, capturing_compiler, patch
from ortmodule_py.lower.number_writer import ARITHMETIC
from ortmodule_py.trace.decompositions.float_arguments import rewrite_for

_CAPTURED_VALUES = 3
"""Captured values of a float before the graph breaks at the call."""
_INDEXES = {operator.getitem, operator.setitem}


def _probe(trial: Trial) -> bool:
    def loss(x: Tensor, label: Tensor, smoothing: float) -> Tensor:
        return functional.cross_entropy(x, label, label_smoothing=smoothing)

    x, label = torch.tensor([[1.0, -1.0]]), torch.tensor([1])
    numbers = (0.3, 0.7, 0.1)
    same = trial(lambda: loss, *((x, label, number) for number in numbers))
    return same and trial.captures < len(numbers)


@patch(
    "floats",
    "Float arguments of torch's functions that change from call to call need no new capture.",
    "torch._dynamo.utils:run_node",
    probe=_probe,
    needed_by=None,
)
def _watched(
    run_node: Callable[..., Any], tracer: Any, node: fx.Node, args: Any, kwargs: Any, nnmodule: Any
) -> Any:
    given = [value for value in (*args, *kwargs.values()) if changes(value)]
    picks = node.target in _INDEXES and _reads_position(args[1])
    if not given and not picks:
        return run_node(tracer, node, args, kwargs, nnmodule)
    compiler: Any = capturing_compiler()
    if picks and compiler.log.has_captured(origin_of(node)):
        compiler.log.report_specialized(SIZE, origin_of(node), values_in(args[1]))
    of_numbers = node.target in ARITHMETIC and not any(isinstance(a, Tensor) for a in args)
    read = any(map(free_unbacked_symbols, given))
    of_floats = any(has_float(value.node.expr) for value in given)
    known = of_numbers or read or compiler.log.has_captured(origin_of(node))
    if of_floats and not known:
        # Other modules of this class had other values. This module's may never change, and calls with
        # constants can be fused. Numbers that follow from sizes of a batch do change.
        args, kwargs = pytree.tree_map(_fixed, (args, kwargs))
        return run_node(tracer, node, args, kwargs, nnmodule)
    if rewrite_for(node.target, args, kwargs, compiler.options.torch_rng) is not None:
        hinted = {name: _now(value) for name, value in kwargs.items()}
        result = run_node(tracer, node, tuple(map(_now, args)), hinted, nnmodule)
        if isinstance(result, Tensor):
            return result
    if not of_numbers and not read:
        _break_where_exhausted(node, given, compiler)
    result = run_node(tracer, node, args, kwargs, nnmodule)
    if any(map(_is_fixed, given)):
        values = tuple(map(_now, given))
        compiler.log.report_specialized_float(call_name(node.target), origin_of(node), values)
    return result


def _break_where_exhausted(node: fx.Node, given: list[Any], compiler: Any) -> None:
    """Break the graph at the call if it has captured three values of a float."""
    values = tuple(_now(value) for value in given if isinstance(value, torch.SymFloat))
    call = call_name(node.target), origin_of(node)[1]
    seen = compiler.log.float_values[call]
    seen.update([values] if values else [])
    exhausted = call in compiler.log.fixed_floats and len(seen) >= _CAPTURED_VALUES
    if values and exhausted and not compiler.options.fullgraph:
        break_graph(
            f"three values of a float were captured as constants of {call[0]}",
            "Each further value would be one more capture.",
            "Give the float as a tensor where the function takes one.",
        )


def _reads_position(index: Any) -> bool:
    """Whether an index selects one position by a symbolic number, which torch specializes."""
    return any(map(changes, index)) if isinstance(index, tuple) else changes(index)


def _now(value: Any) -> Any:
    """The value of a symbolic number in this call, without a guard."""
    if not changes(value):
        return value
    if free_unbacked_symbols(value):
        return 1.0  # read from a tensor, so unknown; fake results of rewritten calls do not depend on it
    return value_now(value)


def _is_fixed(value: Any) -> bool:
    """Whether a guard specializes the number; its expression alone does not show that."""
    if not changes(value):
        return True
    return not free_unbacked_symbols(value) and statically_known_true(value == _now(value))


def _fixed(value: Any) -> Any:
    """The value of a symbolic float in this call, with a guard."""
    if not isinstance(value, torch.SymFloat) or free_unbacked_symbols(value):
        return value
    return float(value) if changes(value) else value
