"""Captures tensors of one integer that stand where torch takes a size, as in `torch.arange(lengths.max())`.

Torch reads the number; Dynamo breaks the graph there, also where the number follows from an integer tensor that
is given (`content_numbers`). Slices are no case of it: Dynamo reads their bounds by `item()`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.lists import ListVariable, TupleVariable
from torch.nn import functional

from ortmodule_py.dynamo.patches.content_numbers import number_of
from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import patch

_FUNCTIONS: dict[Any, slice] = {
    **dict.fromkeys((torch.arange, torch.empty, torch.ones, torch.rand, torch.randn), slice(None)),
    **dict.fromkeys((torch.randperm, torch.zeros), slice(None)),
    **dict.fromkeys((torch.full, torch.eye), slice(1)),
    **dict.fromkeys((functional.pad, torch._C._nn.pad), slice(1, 2)),
}
"""Arguments that are sizes, by function."""
_METHODS = {
    *("expand", "narrow", "new_empty", "new_ones", "new_zeros", "repeat", "reshape", "view"),
    *("unflatten",),
}


def _lengths(rows: int) -> tuple[Tensor, Tensor]:
    return torch.ones(2, 9), torch.tensor([rows, 2])


def _probe_functions(trial: Trial) -> bool:
    def masked(x: Tensor, lengths: Tensor) -> Tensor:
        mask = torch.arange(lengths.max()) < lengths[:, None]
        return x[:, : lengths.max()] * mask + torch.zeros(2, lengths.max())

    same = trial(lambda: masked, *map(_lengths, (4, 5, 7)))
    return same and not trial.graph_breaks


@patch(
    "sizes of functions",
    "`torch.arange(lengths.max())` and others that take a tensor as a size break no graph.",
    {(2, 13): "torch._dynamo.variables.torch:TorchInGraphFunctionVariable.call_function"},
    probe=_probe_functions,
    needed_by=None,
)
def _call(call: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    sizes = _FUNCTIONS.get(self.value) if callable(self.value) else None
    if sizes is not None:
        args = list(args)
        args[sizes] = [_with_numbers(tx, value) for value in args[sizes]]
    return call(self, tx, args, kwargs)


def _probe_methods(trial: Trial) -> bool:
    def spread(x: Tensor, lengths: Tensor) -> Tensor:
        return x[:, :1].expand(-1, lengths.max()) + x.new_zeros(2, lengths.max())

    same = trial(lambda: spread, *map(_lengths, (4, 5, 7)))
    return same and not trial.graph_breaks


@patch(
    "sizes of methods",
    "`x.expand(-1, lengths.max())` and other methods that take a tensor as a size break no graph.",
    {(2, 13): "torch._dynamo.variables.tensor:TensorVariable.call_method"},
    probe=_probe_methods,
    needed_by=None,
)
def _method(call: Callable[..., Any], self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
    if name in _METHODS:
        args = [_with_numbers(tx, value) for value in args]
    return call(self, tx, name, args, kwargs)


def _probe_rounds(trial: Trial) -> bool:
    def summed(x: Tensor, lengths: Tensor) -> Tensor:
        y = x.sin()
        for i in range(lengths.max()):
            y = y + x[:, i : i + 1]
        return y

    return trial(lambda: summed, *map(_lengths, (4, 5))) and not trial.graph_breaks


@patch(
    "sizes of ranges",
    "`range(lengths.max())` breaks no graph.",
    {(2, 13): "torch._dynamo.variables.builtin:BuiltinVariable.call_range"},
    probe=_probe_rounds,
    needed_by=None,
)
def _range(call: Callable[..., Any], self: Any, tx: Any, *args: Any) -> Any:
    numbers = [_with_numbers(tx, value) for value in args]
    # A number that nothing tells breaks the graph where it is read, which Dynamo can go on from.
    return call(self, tx, *(_read(tx, n) if n.is_tensor() else n for n in numbers))


def _read(tx: Any, tensor: VariableTracker) -> VariableTracker:
    return tensor.call_method(tx, "item", [], {})


def _with_numbers(tx: Any, value: VariableTracker) -> VariableTracker:
    """The value with numbers in place of tensors of one integer, where they are known in front of the graph."""
    value = value.realize()
    if type(value) in (ListVariable, TupleVariable) and any(
        item.is_tensor() for item in value.items
    ):
        return type(value)([_with_numbers(tx, item) for item in value.items])
    if not value.is_tensor():
        return value
    fake = value.as_proxy().node.meta["example_value"]
    if fake.dim() > 0 or fake.is_floating_point() or fake.is_complex() or fake.dtype is torch.bool:
        return value
    return number_of(tx, value) or value
