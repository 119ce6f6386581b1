"""Captures `nonzero`, `unique` and `repeat_interleave` where integers that are given tell how many results there are.

Dynamo breaks the graph there. Here the number becomes an argument of the graph (`content_sizes`), and the results
are computed for a known number of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.variables import ConstantVariable, TupleVariable, UserFunctionVariable
from torch._dynamo.variables.base import VariableTracker

from ortmodule_py.dynamo.content_sizes import constant_tensor, read_size
from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import patch

_FALSE = ConstantVariable.create(False)
_NONE = ConstantVariable.create(None)


def _probe_functions(trial: Trial) -> bool:
    def grouped(x: Tensor, index: Tensor) -> Tensor:
        places, group = torch.unique(index, return_inverse=True)
        sums = x.new_zeros(len(places)).index_add(0, group, x)
        return sums.sum() + x[torch.nonzero(index > 0).squeeze(1)].sum()

    given = [torch.tensor(numbers) for numbers in ([0, 1, 2, 3], [0, 0, 2, 1], [2, 0, 5, 6])]
    same = trial(lambda: grouped, *((torch.ones(4), index) for index in given))
    return same and trial.captures <= 2 and not trial.graph_breaks


@patch(
    "counted results of functions",
    "`torch.nonzero`, `torch.unique` and `torch.repeat_interleave` of integers that are given are captured.",
    {(2, 13): "torch._dynamo.variables.torch:TorchInGraphFunctionVariable.call_function"},
    probe=_probe_functions,
    needed_by=None,
)
def _call(call: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    result = _FUNCTIONS.get(self.value) if callable(self.value) else None
    found = _result(result, tx, args, kwargs) if result is not None else None
    return call(self, tx, args, kwargs) if found is None else found


def _probe_methods(trial: Trial) -> bool:
    def selected(x: Tensor, index: Tensor) -> Tensor:
        return x[index.nonzero(as_tuple=True)[0]] * 2

    given = [torch.tensor(numbers) for numbers in ([0, 1, 2, 3], [0, 0, 1, 1], [2, 0, 5, 6])]
    same = trial(lambda: selected, *((torch.ones(4), index) for index in given))
    return same and trial.captures <= 2 and not trial.graph_breaks


@patch(
    "counted results of methods",
    "`x.nonzero()` and `x.repeat_interleave(counts)` of integers that are given are captured.",
    {(2, 13): "torch._dynamo.variables.tensor:TensorVariable.call_method"},
    probe=_probe_methods,
    needed_by=None,
)
def _method(call: Callable[..., Any], self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
    result = _METHODS.get(name)
    found = _result(result, tx, [self, *args], kwargs) if result is not None else None
    return call(self, tx, name, args, kwargs) if found is None else found


def _result(result: Callable[..., Any], tx: Any, args: Any, kwargs: Any) -> VariableTracker | None:
    """The result of one of the functions below; None for other arguments than it takes."""
    try:
        return result(tx, *args, **kwargs)
    except TypeError:  # an error of the call, which torch has a text for
        return None


# ---- places --------------------------------------------------------------------------------------


def _nonzero(tx: Any, input: Any, *, as_tuple: VariableTracker = _FALSE) -> VariableTracker | None:
    input = input.realize()
    if not input.is_tensor() or not as_tuple.is_python_constant():
        return None
    count = _number(tx, input, _places)
    if count is None or not _fake(input).dim():
        return None
    return UserFunctionVariable(_places_of).call_function(tx, [input, count, as_tuple], {})


def _where(tx: Any, condition: Any) -> VariableTracker | None:
    return _nonzero(tx, condition, as_tuple=ConstantVariable.create(True))


def _places(values: Tensor) -> int:
    return int(values.count_nonzero())


def _places_of(values: Tensor, count: int, as_tuple: bool) -> Any:
    found = torch.nonzero_static(values, size=count)
    return found.unbind(1) if as_tuple else found


# ---- different values ----------------------------------------------------------------------------


def _unique(
    tx: Any,
    input: Any,
    sorted: Any = _FALSE,
    return_inverse: Any = _FALSE,
    return_counts: Any = _FALSE,
    dim: Any = _NONE,
) -> VariableTracker | None:
    asked = [return_inverse, return_counts, dim]
    return _different(tx, input.realize(), asked, torch.unique, _different_sorted)


def _unique_consecutive(
    tx: Any,
    input: Any,
    return_inverse: Any = _FALSE,
    return_counts: Any = _FALSE,
    dim: Any = _NONE,
) -> VariableTracker | None:
    asked = [return_inverse, return_counts, dim]
    return _different(tx, input.realize(), asked, torch.unique_consecutive, _different_in_a_row)


def _different(
    tx: Any,
    input: Any,
    asked: list[Any],
    unique: Callable[..., Any],
    formula: Callable[..., Any],
) -> VariableTracker | None:
    """The values, and their inverse and counts as far as they are asked for."""
    if not input.is_tensor() or not all(value.is_python_constant() for value in asked):
        return None
    *flags, dim = (value.as_python_constant() for value in asked)
    if dim is not None or _fake(input).is_floating_point() or _fake(input).is_complex():
        return None
    known = constant_tensor(input)
    if known is not None:
        found = unique(known, return_inverse=True, return_counts=True)
        constants = [VariableTracker.build(tx, [r.tolist(), r.dtype]) for r in found]
        results = UserFunctionVariable(_constants).call_function(tx, constants, {})
    else:
        count = read_size(tx, input, _sorted_number if unique is torch.unique else _number_in_a_row)
        if count is None:
            return None
        results = UserFunctionVariable(formula).call_function(tx, [input, count], {})
    values, *others = results.items
    kept = [values, *(other for other, flag in zip(others, flags, strict=True) if flag)]
    return kept[0] if len(kept) == 1 else TupleVariable(kept)


def _sorted_number(values: Tensor) -> int:
    return values.unique().numel()


def _number_in_a_row(values: Tensor) -> int:
    return values.unique_consecutive().numel()


def _constants(*results: Any) -> Any:
    return tuple(torch.tensor(values, dtype=dtype) for values, dtype in results)


def _different_sorted(x: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The values, the place of each element among them, and how often each one occurs."""
    values, order = x.flatten().sort()
    different, group, counts = _different_in_a_row(values, count)
    return different, torch.zeros_like(group).scatter(0, order, group).view(x.shape), counts


def _different_in_a_row(x: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    values = x.flatten()
    changes = values[1:] != values[:-1]
    first = torch.cat([torch.ones_like(values[:1], dtype=torch.bool), changes])
    begins = torch.nonzero_static(first, size=count).view(-1)
    ends = torch.cat([begins, torch.full_like(begins[:1], values.numel())])
    return values[begins], (first.cumsum(0) - 1).view(x.shape), ends[1:] - ends[:-1]


# ---- repetitions ---------------------------------------------------------------------------------


def _repeat_interleave(
    tx: Any, input: Any, repeats: Any = None, dim: Any = _NONE, *, output_size: Any = _NONE
) -> VariableTracker | None:
    input, repeats = (input, repeats) if repeats is not None else (None, input)
    repeats = repeats.realize()
    if not output_size.is_constant_none() or not repeats.is_tensor():
        return None
    if _fake(repeats).dtype not in (torch.int64, torch.int32) or _fake(repeats).dim() != 1:
        return None
    if input is not None and not _has_each(input.realize(), repeats, dim):
        return None
    count = _number(tx, repeats, _sum)
    if count is None:
        return None
    if input is None:
        return UserFunctionVariable(_repeated_places).call_function(tx, [repeats, count], {})
    return UserFunctionVariable(_repeated).call_function(tx, [input, repeats, count, dim], {})


def _has_each(x: Any, repeats: Any, dim: Any) -> bool:
    """Whether there is a number for each element of a dim, not one for all."""
    if not x.is_tensor() or not dim.is_python_constant():
        return False
    fake, along = _fake(x), dim.as_python_constant()
    known = along is None or (isinstance(along, int) and -fake.dim() <= along < fake.dim())
    if not known:
        return False
    size = fake.numel() if along is None else fake.shape[along]
    return bool(_fake(repeats).shape[0] == size)


def _sum(repeats: Tensor) -> int:
    return int(repeats.sum())


def _repeated_places(repeats: Tensor, count: int) -> Tensor:
    return torch.repeat_interleave(repeats, output_size=count)


def _repeated(x: Tensor, repeats: Tensor, count: int, dim: int | None) -> Tensor:
    x, dim = (x.flatten(), 0) if dim is None else (x, dim)
    return x.index_select(dim, torch.repeat_interleave(repeats, output_size=count))


# ---- numbers -------------------------------------------------------------------------------------


def _number(tx: Any, of: VariableTracker, read: Callable[[Tensor], int]) -> VariableTracker | None:
    """What `read` finds in a tensor; None if it follows neither from constants nor from arguments."""
    known = constant_tensor(of)
    if known is not None:
        return ConstantVariable.create(read(known))
    return read_size(tx, of, read)


def _fake(value: VariableTracker) -> Any:
    return value.as_proxy().node.meta["example_value"]


_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    torch.nonzero: _nonzero,
    torch.argwhere: _nonzero,
    torch.where: _where,
    torch.unique: _unique,
    torch.unique_consecutive: _unique_consecutive,
    torch.repeat_interleave: _repeat_interleave,
}
_METHODS: dict[str, Callable[..., Any]] = {
    "nonzero": _nonzero,
    "argwhere": _nonzero,
    "unique": _unique,
    "unique_consecutive": _unique_consecutive,
    "repeat_interleave": _repeat_interleave,
}
