"""Makes constants of the sizes that a program rounds in a way that no integers can say.

`int(n * 1.25 / 4)` is `n * 5 // 16` for each n. `round(n * 0.3)` is an argument of the graph, which each call
computes (`dynamo/computed_sizes`); here is what remains: sizes that torch's operators compute themselves, and
products that sympy orders otherwise. Each size is a capture there.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator

import sympy
import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from ortmodule_py.base.changing_numbers import has_float
from ortmodule_py.base.errors import CannotLower
from ortmodule_py.lower.sizes.scaled import ROUNDINGS, odd_part
from ortmodule_py.lower.sizes.symbolic import dim_text
from ortmodule_py.trace.strides.doubtful import is_range_of_floats

Fixed = tuple[fx.Node, str, int]
"""What rounds, the symbol of a size, and its value in this capture."""


def fix_rounded_sizes(gm: fx.GraphModule) -> list[Fixed]:
    """Fix them with guards in Dynamo's shape environment, before the symbols get anywhere else."""
    graphs = [module.graph for module in gm.modules() if isinstance(module, fx.GraphModule)]
    nodes = [node for graph in graphs for node in graph.nodes if node.op.startswith("call")]
    reordered = {node.meta["example_value"].node.expr for node in nodes if _is_reordered(node)}
    exact = {part for node in nodes if _is_range_of_integers(node) for _, part in _roundings(node)}
    fixed: list[Fixed] = []
    for node in nodes:
        for value, part in _roundings(node):
            shape_env = value.node.shape_env
            if part in exact or _is_sayable(part, reordered):
                continue
            for symbol in sorted(part.free_symbols, key=str):
                fixed.append(
                    (node, str(symbol), int(shape_env.create_symintnode(symbol, hint=None)))
                )
    return fixed


def _roundings(node: fx.Node) -> Iterator[tuple[torch.SymInt, sympy.Expr]]:
    """The integers that are made of a floating point number of sizes, in an integer or a size that is used."""
    value = node.meta.get("example_value")
    for size in value.shape if isinstance(value, torch.Tensor) else [value]:
        if not isinstance(size, torch.SymInt) or not node.users or free_unbacked_symbols(size):
            continue
        for part in sympy.preorder_traversal(size.node.expr):
            if type(part).__name__ in ROUNDINGS and not has_float(part):
                yield size, part


def _is_range_of_integers(node: fx.Node) -> bool:
    """Whether this is `arange(n, -n, -1.0)`, whose length the trace computes in integers."""
    given = (*node.args, *node.kwargs.values())
    changing = (n.meta.get("example_value") for n in node.all_input_nodes)
    return (
        is_range_of_floats(node)
        and all(value.is_integer() for value in given if isinstance(value, float))
        and not any(isinstance(value, torch.SymFloat) for value in changing)
    )


def _is_sayable(part: sympy.Expr, reordered: set[sympy.Expr]) -> bool:
    if not reordered.isdisjoint(sympy.preorder_traversal(part)):
        return False
    try:
        dim_text(part)
    except CannotLower:
        return False
    return True


_SMALL = 2**20


def _is_reordered(node: fx.Node) -> bool:
    """Whether sympy made one constant of two, where `n * a * b` rounds otherwise than `n * (a * b)`."""
    value = node.meta.get("example_value")
    if node.target is not operator.mul or not isinstance(value, torch.SymFloat):
        return False
    numbers = [a.meta["example_value"] if isinstance(a, fx.Node) else a for a in node.args]
    constants = [float(number) for number in numbers if isinstance(number, (int, float))]
    for number in numbers:
        expr = number.node.expr if isinstance(number, torch.SymFloat) else None
        if isinstance(expr, sympy.Mul):
            constants += [float(arg) for arg in expr.args if isinstance(arg, sympy.Float)]
    return len(constants) > 1 and any(odd_part(constant) >= _SMALL for constant in constants)
