"""Values whose data changes where autograd does not see it: under `no_grad`, or by `.data`.

In eager PyTorch such a value keeps its gradient: that of the new data goes where that of the old would have
gone. A functional graph has a new value there, which `with_gradient_of` marks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ortmodule_py.base.changing_numbers import call_name
from ortmodule_py.trace.gradient_effects import GRAD_MODES
from ortmodule_py.trace.record import is_traced, storage_key

_NOT_READ_BY_THEIR_BACKWARD = {
    *("add", "div", "mean", "mul", "neg", "sub", "sum", "truediv", "where"),
    *("baddbmm", "bmm", "conv1d", "conv2d", "einsum", "linear", "matmul", "mm"),
    *("cat", "clone", "contiguous", "stack"),
}
"""Functions whose results may change by `.data`: what backward reads are their operands."""


class _WithGradientOf(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, data: Tensor, value: Tensor) -> Tensor:
        return data.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return None, gradient


def with_gradient_of(data: Tensor, value: Tensor) -> Tensor:
    """`data`, whose gradient goes to `value`, in any grad mode; the trace of a piece replaces it by a marker."""
    with torch.enable_grad():
        made: Tensor = _WithGradientOf.apply(data, value)
    return made


@dataclass
class Whole:
    """A traced value that others may be views of."""

    node: fx.Node
    value: Any
    index: int | None
    """Of an input of the piece."""

    @property
    def example(self) -> Tensor:
        """As it is in eager PyTorch behind the piece."""
        example: Tensor = self.node.meta["example_value"]
        return example

    def may_be_changed_by(self, view: fx.Node, before: fx.Node) -> bool:
        """Whether a change by this view of it has a meaning that does not depend on what is saved for backward.

        Autograd counts changes under `no_grad`: it raises if backward has to read the old data. Those of `.data`
        it does not count, so that backward reads the new data.
        """
        if not self._by_data(view):
            return True
        if self.index is None:
            if call_name(self.node.target) not in _NOT_READ_BY_THEIR_BACKWARD:
                return False
        elif not self.example.is_leaf:
            return False
        return not _backward_may_read(self.node, before, storage_key(self.example))

    def _by_data(self, view: fx.Node) -> bool:
        while view is not self.node:
            views = [n for n in view.all_input_nodes if _shares(n, self.example)]
            if view.target is torch._C._autograd._get_data_attr or not views:
                return True
            view = views[0]
        return False


class Wholes:
    """The first value with each memory, of inputs and of values with a gradient."""

    def __init__(self) -> None:
        self._known: dict[int, Whole | None] = {}

    def add(self, node: fx.Node, value: Any, index: int | None = None) -> None:
        """A value that was just computed, or the input with this index."""
        example = node.meta.get("example_value")
        if not is_traced(value) or not has_storage(example):
            return
        if index is None and not example.requires_grad:
            return
        key = storage_key(example)
        known = self._known.get(key)
        copied = known is not None and node.target == "clone" and node.args[0] is known.node
        # A copy stands in place of an input that changes (`compile/changed_inputs`).
        if key not in self._known or copied:
            self._known[key] = Whole(node, value, index)
        elif index is not None:
            self._known[key] = None  # of several inputs

    def of(self, example: Any) -> Whole | None:
        """The value with the memory of this example value."""
        return self._known.get(storage_key(example)) if has_storage(example) else None

    def clear(self) -> None:
        """Forget all values."""
        self._known.clear()


def is_forgotten_behind(call: fx.Node, operand: Any) -> bool:
    """Whether nothing reads the memory of an operand behind a call, so that no one sees what the call writes there."""
    example = operand.meta.get("example_value") if isinstance(operand, fx.Node) else None
    if not has_storage(example):
        return False
    sharing = [node for node in call.graph.nodes if _shares(node, example)]
    return not any(
        node.op in ("placeholder", "get_attr")
        or node is call
        or any(user is not call and not user < call for user in node.users)
        for node in sharing
    )


def has_storage(example: Any) -> bool:
    """Whether an example value is a plain tensor, which others may share memory with."""
    if not isinstance(example, Tensor) or is_traceable_wrapper_subclass(example):
        return False
    if torch._C._functorch.is_functorch_wrapped_tensor(example):
        return False
    return example.layout is torch.strided and not example.is_nested


def _shares(node: fx.Node, example: Tensor) -> bool:
    other = node.meta.get("example_value")
    return has_storage(other) and storage_key(other) == storage_key(example)


def _backward_may_read(value: fx.Node, before: fx.Node, storage: int) -> bool:
    """Whether backward may read this value, with this memory, for a node in front of `before`."""
    for user in value.users:
        if not user < before:
            continue
        example = user.meta.get("example_value")
        if not isinstance(example, Tensor):
            if user.target not in GRAD_MODES:
                return True
        elif storage_key(example) == storage:
            if _backward_may_read(user, before, storage):
                return True
        elif example.requires_grad:
            return True
    return False
