"""Lookups in embeddings with `sparse=True`, whose gradient is a sparse tensor.

The engine has dense gradients only. So torch looks up in front of the piece, which takes the rows that
were found as one more argument: autograd makes the sparse gradient, and all the rest stays compiled.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx
from torch.nn import functional

from ortmodule_py.base.errors import Origin, origin_of
from ortmodule_py.dynamo.content_sizes import PURE

REASON = (
    "the lookup in an embedding with `sparse=True`, whose gradient is sparse; the rest is compiled"
)

_LOOKUPS = (functional.embedding, functional.embedding_bag)
_OF_INDICES = PURE | {"arange", "split"}
"""Functions and methods that may stand between arguments and indices: they run twice, here and in the piece."""


@dataclass
class SparseLookups:
    """What runs in front of a piece: from its arguments to its further arguments."""

    look_up: Callable[..., Any]
    origins: list[Origin]

    def before(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """`run`, with the rows that are looked up as further arguments."""
        look_up = self.look_up
        return lambda *args: run(*args, *look_up(*args))


def take_sparse_lookups(
    gm: fx.GraphModule, example_inputs: Sequence[Any]
) -> tuple[SparseLookups | None, fx.GraphModule, Sequence[Any]]:
    """The lookups, None without any; the graph with further inputs in their place; its example inputs."""
    if not any(map(_is_sparse, gm.graph.nodes)):
        return None, gm, example_inputs
    gm = fx.GraphModule(gm, copy.deepcopy(gm.graph))  # Dynamo reads the inputs of its own graph
    placeholders = gm.graph.find_nodes(op="placeholder")
    before = fx.Graph()
    copies = {node: before.placeholder(node.name) for node in placeholders}
    found = [node for node in gm.graph.nodes if _is_sparse(node) and _copy(node, before, copies)]
    if not found:
        return None, gm, example_inputs
    before.output(tuple(copies[node] for node in found))
    origins = [origin_of(node) for node in found]
    rows = [node.meta["example_value"] for node in found]
    last = placeholders[-1]
    for node in found:
        with gm.graph.inserting_after(last):
            last = gm.graph.placeholder(f"rows_of_{node.name}")
        last.meta = dict(node.meta)
        _replace(node, last)
    gm.recompile()
    given = [value.detach().requires_grad_() for value in rows]
    lookups = SparseLookups(fx.GraphModule(gm, before).forward, origins)
    return lookups, gm, [*example_inputs, *given]


def _is_sparse(node: fx.Node) -> bool:
    if node.op != "call_function" or node.target not in _LOOKUPS:
        return False
    signature = inspect.signature(node.target)
    given = signature.bind(*node.args, **node.kwargs).arguments
    value = node.meta.get("example_value")
    # With `max_norm` the lookup changes the table.
    sparse = given.get("sparse") is True and given.get("max_norm") is None
    return sparse and isinstance(value, Tensor) and value.requires_grad


def _copy(lookup: fx.Node, graph: fx.Graph, copies: dict[fx.Node, fx.Node]) -> bool:
    """Copy the lookup and the computation of its indices to `graph`; False if it must not move."""
    needed, left = {lookup}, [lookup]
    while left:
        node = left.pop()
        if node is not lookup and not _may_run_before(node):
            return False
        fresh = [given for given in node.all_input_nodes if given not in needed]
        needed.update(fresh)
        left += fresh
    for node in lookup.graph.nodes:
        if node in needed and node not in copies:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    return True


def _may_run_before(node: fx.Node) -> bool:
    """Whether a value is the same in front of the piece: an argument, or computed from arguments alone.

    A count of changes other than zero tells that the piece writes into it.
    """
    value = node.meta.get("example_value")
    if isinstance(value, Tensor) and value._version != 0:
        return False
    if node.op == "placeholder":
        return True
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if node.op not in ("call_function", "call_method") or name not in _OF_INDICES:
        return False
    return not (isinstance(value, Tensor) and value.requires_grad)


def _replace(lookup: fx.Node, rows: fx.Node) -> None:
    """Read `rows`, or a copy where the piece changes them in place: they are no leaf of its own."""
    if lookup.meta["example_value"]._version != 0:
        with lookup.graph.inserting_after(lookup):
            own = lookup.graph.call_method("clone", (rows,))
        own.meta = dict(lookup.meta)
        rows = own
    lookup.replace_all_uses_with(rows)
    lookup.graph.erase_node(lookup)
