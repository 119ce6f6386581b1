"""Integers that are computed of sizes in a way that the engine has no form for, such as `int(0.3 * n)`.

Each of them becomes an argument of the graph, a symbol like any other: each call computes it from the sizes
before the graph runs, by the program's own steps, so that other sizes need no new capture.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from torch import fx
from torch._dynamo.variables import SymNodeVariable
from torch._dynamo.variables.base import VariableTracker
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from ortmodule_py.base.errors import CannotLower
from ortmodule_py.dynamo.further_arguments import argument_of
from ortmodule_py.lower.sizes.symbolic import dim_text

_EXACTLY = "ortmodule_exactly"
Numbers = Sequence[Any]
"""Numbers and nodes that compute one."""


def mark_exact(made: VariableTracker, function: Callable[..., Any], args: Numbers) -> None:
    """The number `made` is `function(*args)`, where the graph has a formula that may round otherwise."""
    if not isinstance(made, SymNodeVariable):
        return
    node = made.as_proxy().node
    if (
        node.op == "call_function" and node not in args
    ):  # `np.ceil` of an integer is the integer itself
        node.meta[_EXACTLY] = function, tuple(args)


def computed_size(tx: Any, function: Callable[..., Any], args: Numbers) -> VariableTracker | None:
    """The integer `function(*args)` as an argument of the graph; None if it depends on more than sizes."""
    graph, sizes = fx.Graph(), Sizes()
    if not all(sizes.reach(value) for value in args) or not sizes.sources:
        return None
    symbols = {name: graph.placeholder(name) for name in sizes.sources}
    copies: dict[fx.Node, fx.Node] = {}

    def copy(value: Any) -> Any:
        if not isinstance(value, fx.Node):
            return value
        if value not in copies:
            text = text_of(value)
            if text is None:
                called, given = call_of(value)
                copies[value] = graph.call_function(called, tuple(map(copy, given)))
            else:
                copies[value] = graph.call_function(evaluated, (text, symbols))
        return copies[value]

    graph.output(graph.call_function(function, tuple(map(copy, args))))
    size = _shared(tx, fx.GraphModule({}, graph))
    return argument_of(tx, size, list(sizes.sources.values()), size(*sizes.now))


class Sizes:
    """The symbols of sizes that numbers of a graph follow from."""

    def __init__(self) -> None:
        self.sources: dict[str, Any] = {}
        """By symbol."""
        self.now: list[int] = []

    def reach(self, value: Any) -> bool:
        """Whether a number follows from sizes alone; adds them."""
        if not isinstance(value, fx.Node):
            return isinstance(value, (int, float))
        if text_of(value) is not None:
            size = value.meta["example_value"].node
            return all(self._add(size, symbol) for symbol in size.expr.free_symbols)
        called = value.op in ("call_function", "call_method") and not value.kwargs
        number = isinstance(value.meta.get("example_value"), (torch.SymInt, torch.SymFloat))
        return called and number and all(self.reach(given) for given in call_of(value)[1])

    def _add(self, size: Any, symbol: sympy.Symbol) -> bool:
        source = next(iter(size.shape_env.var_to_sources.get(symbol, ())), None)
        if source is not None and symbol.name not in self.sources:
            self.sources[symbol.name] = source
            self.now.append(int(size.shape_env.create_symintnode(symbol, hint=None).node.hint))
        return source is not None


def text_of(node: fx.Node) -> str | None:
    """An integer of the graph in terms of symbols, where it is computed of integers alone."""
    value = node.meta.get("example_value")
    if not isinstance(value, torch.SymInt) or free_unbacked_symbols(value):
        return None
    try:
        return dim_text(value.node.expr)
    except CannotLower:
        return None


def evaluated(text: str, symbols: dict[str, int]) -> int:
    """The number that `text_of` wrote."""
    return int(eval(_compiled(text), {"max": max, "min": min}, symbols))


@functools.cache
def _compiled(text: str) -> Any:
    return compile(text, "<size>", "eval")


def call_of(node: fx.Node) -> tuple[Callable[..., Any], Numbers]:
    """The function that gives a number of the graph, and its arguments."""
    called = _method(node.target) if node.op == "call_method" else node.target
    found: tuple[Callable[..., Any], Numbers] = node.meta.get(_EXACTLY, (called, node.args))
    return found


@functools.cache
def _method(name: str) -> Callable[..., Any]:
    def method(number: Any, *args: Any) -> Any:
        return getattr(number, name)(*args)

    method.__name__ = method.__qualname__ = name.strip("_")
    return method


def _shared(tx: Any, compute: fx.GraphModule) -> Callable[..., int]:
    """The size as a function: one object for equal functions of a capture, as it names them."""

    @torch.compiler.disable
    def size(*sizes: int) -> int:
        return int(compute.forward(*sizes))

    made = vars(tx.output).setdefault("_ortmodule_computed", {})
    return made.setdefault((compute.code, str(compute.graph)), size)
