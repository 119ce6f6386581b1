"""Captures an index by Python integers that change once for all of their values, as in `x[:, k]` and `x[[i, j]]`.

Dynamo passes such an index on to torch, which reads the number, so each value is a capture. A single integer is a
`select` here, as torch itself has it, and a list of them a tensor.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.variables import ConstantVariable, SymNodeVariable, TorchInGraphFunctionVariable
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.lists import ListVariable, SliceVariable, TupleVariable
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import patch

_ELLIPSIS = ConstantVariable.create(Ellipsis)


def _calls() -> list[tuple[Any, ...]]:
    return [(torch.arange(24.0).view(3, 8).requires_grad_(), k) for k in (2, 3, 5, 6, 4)]


def _probe_read(trial: Trial) -> bool:
    def read(x: Tensor, k: int) -> Tensor:
        return x[:, k] * 2 + x[1:, [k, k - 1]].sum()

    return trial(lambda: read, *_calls()) and trial.captures <= 2


@patch(
    "indexes by integers",
    "`x[:, k]` and `x[[i, j]]` by integers that change need no new capture.",
    {(2, 13): "torch._dynamo.variables.builtin:BuiltinVariable._handle_insert_op_in_graph"},
    probe=_probe_read,
    needed_by=None,
)
def _insert(insert: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    selected = _selected(tx, *args) if self.fn is operator.getitem else None
    if selected is None:
        return insert(self, tx, args, kwargs)
    tensor, rest = selected
    return insert(self, tx, [tensor, rest], kwargs) if rest.items else tensor


def _probe_written(trial: Trial) -> bool:
    def written(x: Tensor, k: int) -> Tensor:
        y = x * 1
        y[:, k] = x[:, 0]
        return y * 2

    return trial(lambda: written, *_calls()) and trial.captures <= 2


@patch(
    "assignments by integers",
    "`x[:, k] = y` by integers that change needs no new capture.",
    {(2, 13): "torch._dynamo.variables.tensor:TensorVariable.method___setitem__"},
    probe=_probe_written,
    needed_by=None,
)
def _set(set_item: Callable[..., Any], self: Any, tx: Any, key: Any, value: Any) -> Any:
    selected = _selected(tx, self, key)
    if selected is None:
        return set_item(self, tx, key, value)
    tensor, rest = selected
    version = self._get_fake_version()
    result = set_item(tensor, tx, rest if rest.items else _ELLIPSIS, value)
    # The value is written into a view: what Dynamo knows of the tensor itself changes, too.
    self._sync_if_inplace_mutation(tx, version, value.is_tensor())
    return result


def _selected(tx: Any, tensor: Any, key: Any) -> tuple[VariableTracker, TupleVariable] | None:
    """The tensor behind the integers that change, and the rest of its index; None if there are none of them."""
    tensor, key = tensor.realize(), key.realize()
    if not tensor.is_tensor():
        return None
    items = [item.realize() for item in (key.items if type(key) is TupleVariable else [key])]
    if not any(map(_is_symbol, items)) and not any(map(_is_list, items)):
        return None
    dims = _dims(tensor.as_proxy().node.meta["example_value"].dim(), items)
    if dims is None or _is_stride_read(items):
        return None
    rest: list[VariableTracker] = []
    # From the last one on, so that the dims in front stay where they are.
    for item, dim in reversed(list(zip(items, dims, strict=True))):
        if _is_symbol(item):
            tensor = tensor.call_method(tx, "select", [ConstantVariable.create(dim), item], {})
        else:
            rest.insert(0, _as_tensor(tx, tensor, item) if _is_list(item) else item)
    return tensor, TupleVariable(rest)


def _dims(rank: int, items: Sequence[VariableTracker]) -> list[int] | None:
    """The dim that each item begins at; None for an index that this does not know."""
    taken = [_taken(item) for item in items]
    known = [count for count in taken if count is not None and count >= 0]
    if None in taken or taken.count(_REMAINING) > 1 or sum(known) > rank:
        return None
    dims, dim = [], 0
    for count in taken:
        dims.append(dim)
        dim += rank - sum(known) if count == _REMAINING else count  # type: ignore[operator]
    return dims


_REMAINING = -1


def _is_stride_read(items: Sequence[VariableTracker]) -> bool:
    """Whether a new dim takes its stride from a dim that a `select` before it would remove: `x[None, k]`."""
    pairs = itertools.pairwise(items)
    return any(item.is_constant_none() and _is_symbol(following) for item, following in pairs)


def _taken(item: VariableTracker) -> int | None:
    """How many dims an item of an index takes; None for an item that this does not know."""
    if item.is_tensor():
        fake = item.as_proxy().node.meta["example_value"]
        return fake.dim() if fake.dtype in (torch.bool, torch.uint8) else 1
    if isinstance(item, SliceVariable) or _is_symbol(item) or _is_list(item):
        return 1
    if not item.is_python_constant():
        return None
    value = item.as_python_constant()
    if value is None:
        return 0
    if value is Ellipsis:
        return _REMAINING
    return 1 if type(value) in (int, list, slice) else None


def _is_symbol(item: VariableTracker) -> bool:
    if not isinstance(item, SymNodeVariable) or not isinstance(item.sym_num, torch.SymInt):
        return False
    return not free_unbacked_symbols(item.sym_num)


def _is_list(item: VariableTracker) -> bool:
    """Whether an item is a list of integers of which some change."""
    if type(item) is not ListVariable:
        return False
    numbers = [number.realize() for number in item.items]
    constant = (n.is_python_constant() and type(n.as_python_constant()) is int for n in numbers)
    whole = all(known or _is_symbol(n) for known, n in zip(constant, numbers, strict=True))
    return whole and any(map(_is_symbol, numbers))


def _as_tensor(tx: Any, of: Any, numbers: VariableTracker) -> VariableTracker:
    device = VariableTracker.build(tx, of.as_proxy().node.meta["example_value"].device)
    tensor = TorchInGraphFunctionVariable(torch.tensor)
    return tensor.call_function(tx, [numbers], {"device": device})
