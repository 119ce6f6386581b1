"""Keeps Dynamo from fixing the floats of calls that `float_arguments` can rewrite.

Dynamo runs each call on fake tensors to see what comes out. Where torch takes a number for a C++
double there, the number gets a guard and each further value is a capture.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils import _pytree as pytree

from ortmodule_py.base.changing_numbers import SIZE, changes
from ortmodule_py.base.errors import origin_of
from ortmodule_py.lower.number_writer import ARITHMETIC
from ortmodule_py.trace.decompositions.float_arguments import rewrite_for

FindCompiler = Callable[[Any], Any]
"""Our compiler that a Dynamo backend stands for, or None."""

_INDEXES = {operator.getitem, operator.setitem}


@functools.cache
def install(find_compiler: FindCompiler) -> None:
    """Watch Dynamo's runs of calls, which go through one private function of torch."""
    run_node = getattr(torch._dynamo.utils, "run_node", None)
    if run_node is None:
        return  # another torch: such floats cost captures again

    @functools.wraps(run_node)
    def watched(tracer: Any, node: fx.Node, args: Any, kwargs: Any, nnmodule: Any) -> Any:
        given = [value for value in (*args, *kwargs.values()) if changes(value)]
        picks = node.target in _INDEXES and _reads_position(args[1])
        asked = given or picks
        compiler = find_compiler(getattr(tracer, "compiler_fn", None)) if asked else None
        if compiler is None:
            return run_node(tracer, node, args, kwargs, nnmodule)
        if picks and compiler.log.has_captured(origin_of(node)):
            compiler.log.report_specialized(SIZE, origin_of(node))
        of_numbers = node.target in ARITHMETIC and not any(isinstance(a, Tensor) for a in args)
        read = any(map(free_unbacked_symbols, given))
        if not of_numbers and not read and not compiler.log.has_captured(origin_of(node)):
            # Other modules of this class had other numbers; this one's may never change, and what
            # takes a constant is fused.
            args, kwargs = pytree.tree_map(_fixed, (args, kwargs))
            return run_node(tracer, node, args, kwargs, nnmodule)
        if rewrite_for(node.target, args, kwargs, compiler.options.torch_rng) is not None:
            hinted = {name: _now(value) for name, value in kwargs.items()}
            result = run_node(tracer, node, tuple(map(_now, args)), hinted, nnmodule)
            if isinstance(result, Tensor):
                return result
        result = run_node(tracer, node, args, kwargs, nnmodule)
        if not all(map(changes, given)):
            compiler.log.report_specialized(_name(node.target), origin_of(node))
        return result

    torch._dynamo.utils.run_node = watched


def _reads_position(index: Any) -> bool:
    """Whether an index picks one position by a number that changes, which torch takes as it is."""
    return any(map(changes, index)) if isinstance(index, tuple) else changes(index)


def _now(value: Any) -> Any:
    """A number that changes as it is in this call, without a guard."""
    if not changes(value):
        return value
    if free_unbacked_symbols(value):
        return 1.0  # read from a tensor: no result of a rewritten call depends on it yet
    hint = value.node.hint
    return float(hint) if isinstance(value, torch.SymFloat) else int(hint)


def _name(target: Any) -> str:
    return str(getattr(target, "__name__", target))


def _fixed(value: Any) -> Any:
    """A float that changes as it is in this call, with a guard."""
    if not isinstance(value, torch.SymFloat) or free_unbacked_symbols(value):
        return value
    return float(value) if changes(value) else value
