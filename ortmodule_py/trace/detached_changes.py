"""Detached values that take on a gradient in place: `p = table.detach(); p += self.embed(ids)`.

In eager PyTorch the gradient of the change belongs to `p`, and not to the value that it was detached from, whose
data it changes. A functional graph gives a changed view the gradient of what it views, so `p` gets memory of its own,
where no one sees that it has.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, fx

from ortmodule_py.base.changing_numbers import call_name
from ortmodule_py.base.errors import CannotLower, origin_of
from ortmodule_py.trace.changed_data import has_storage
from ortmodule_py.trace.record import storage_key

_DETACHES = ("detach", torch.detach, Tensor.detach, torch._C._autograd._get_data_attr)
_VIEWS = {
    *("detach", "expand", "flatten", "getitem", "narrow", "permute", "reshape", "select"),
    *("squeeze", "t", "transpose", "unflatten", "unsqueeze", "view", "view_as"),
}


def changed_detached(graph: fx.Graph) -> frozenset[fx.Node]:
    """The detached values that take on a gradient in place, but for those of inputs, which change with them.

    Raises:
        CannotLower: something else reads the memory of one behind the change.
    """
    found = [node for node in graph.nodes if node.target in _DETACHES and _takes_on_gradient(node)]
    inputs = {_storage(node) for node in graph.nodes if node.op in ("placeholder", "get_attr")}
    found = [node for node in found if _storage(node) not in inputs]
    for node in found:
        if _is_seen(node):
            text = "a detached value with shared memory takes on a gradient in place"
            raise CannotLower(f"{text}; detach().clone() has memory of its own", origin_of(node))
    return frozenset(found)


def _takes_on_gradient(node: fx.Node) -> bool:
    """The example value of a node is as the last change has left it."""
    example = node.meta.get("example_value")
    return isinstance(example, Tensor) and example.requires_grad and not example.is_leaf


def _is_seen(node: fx.Node) -> bool:
    """Whether a value with this memory that is no view of this one changes behind it, or is read behind its change."""
    key = storage_key(node.meta["example_value"])
    own = set(_with_this_memory(node, key))
    first = min(_not_for_views(node))
    for other in node.graph.nodes:
        if other in own or _storage(other) != key:
            continue
        for user in other.users:
            reads_before = user < first and _storage(user) not in (None, key)
            if node < user and user not in own and not reads_before:
                return True
    return False


def _with_this_memory(node: fx.Node, key: int) -> Iterator[fx.Node]:
    """The node and all that is made of it in its memory: views, and results of changes."""
    yield node
    for user in node.users:
        if user.op.startswith("call") and _storage(user) == key:
            yield from _with_this_memory(user, key)


def _not_for_views(node: fx.Node) -> Iterator[fx.Node]:
    """Users of a node and its views, except for those that make a view; one of them is its first change."""
    for user in node.users:
        if call_name(user.target) in _VIEWS:
            yield from _not_for_views(user)
        else:
            yield user


def _storage(node: fx.Node) -> int | None:
    example = node.meta.get("example_value")
    return storage_key(example) if has_storage(example) else None
