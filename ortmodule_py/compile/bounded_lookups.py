"""Lookups in embeddings with `max_norm`, which scale the rows that they read down to that norm.

The table changes where autograd does not see it, but the function that changes it also looks up. In the graph
these are two calls, so that the first one is known to leave the table its gradient.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional

_LOOKUPS = (functional.embedding, functional.embedding_bag)


def split_bounded_lookups(gm: fx.GraphModule) -> None:
    """Change the table by a call in front of each lookup that would change it."""
    found = [node for node in gm.graph.nodes if node.target in _LOOKUPS]
    for node in found:
        given = inspect.signature(node.target).bind(*node.args, **node.kwargs)
        if given.arguments.get("max_norm") is not None:
            _split(node, given)
    if found:
        gm.recompile()


def _split(node: fx.Node, given: inspect.BoundArguments) -> None:
    table, index = given.arguments["weight"], given.arguments["input"]
    known = table.meta.get("example_value")
    # Older programs give `embedding_bag` the table first; rows of a nested tensor are read by the function.
    if not isinstance(known, Tensor) or not known.is_floating_point():
        return
    if index.meta["example_value"].is_nested:
        return
    bounds = given.arguments["max_norm"], given.arguments.get("norm_type", 2.0)
    with node.graph.inserting_before(node):
        rows = node.graph.call_method("detach", (table,))
        changed = node.graph.call_function(torch.embedding_renorm_, (rows, index, *bounds))
    meta: dict[str, Any] = {**node.meta, "example_value": known.detach()}
    rows.meta, changed.meta = meta, dict(meta)
    given.arguments["max_norm"] = None
    node.args, node.kwargs = given.args, given.kwargs
