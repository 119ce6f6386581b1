"""Captures tensors that torch fills by a number of elements, as `torch.linspace(0, 1, n)`, once for all numbers.

Torch takes the number as a C++ int, which a capture makes a constant. Here they are computed of `torch.arange`,
in eager's order of operations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch._dynamo.variables import ConstantVariable, SymNodeVariable, UserFunctionVariable
from torch._dynamo.variables.base import VariableTracker

from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import patch

Type: TypeAlias = torch.dtype | None
Where: TypeAlias = torch.device | None
_FLOATS = (None, torch.float32, torch.float64)


def _counted(n: int, dtype: Type, device: Where) -> Tensor:
    return torch.arange(n, dtype=dtype or torch.get_default_dtype(), device=device)


def _linspace(
    start: float, end: float, steps: int, dtype: Type = None, device: Where = None
) -> Tensor:
    i = _counted(steps, dtype, device)
    if steps < 2:
        return i + start
    step = (end - start) / (steps - 1)
    return torch.where(i < steps // 2, start + i * step, end - (steps - 1 - i) * step)


def _logspace(
    start: float,
    end: float,
    steps: int,
    base: float = 10.0,
    dtype: Type = None,
    device: Where = None,
) -> Tensor:
    return torch.pow(base, _linspace(start, end, steps, dtype, device))


def _hamming(
    window_length: int,
    periodic: bool = True,
    alpha: float = 0.54,
    beta: float = 0.46,
    dtype: Type = None,
    device: Where = None,
) -> Tensor:
    i = _counted(window_length, dtype, device)
    if window_length < 2:
        return i + 1
    period = window_length if periodic else window_length - 1
    return (i * (2 * math.pi / period)).cos() * -beta + alpha


def _hann(
    window_length: int, periodic: bool = True, dtype: Type = None, device: Where = None
) -> Tensor:
    return _hamming(window_length, periodic, 0.5, 0.5, dtype, device)


def _blackman(
    window_length: int, periodic: bool = True, dtype: Type = None, device: Where = None
) -> Tensor:
    i = _counted(window_length, dtype, device)
    if window_length < 2:
        return i + 1
    angle = i * (math.pi / (window_length if periodic else window_length - 1))
    return (angle * 4).cos() * 0.08 - (angle * 2).cos() * 0.5 + 0.42


def _bartlett(
    window_length: int, periodic: bool = True, dtype: Type = None, device: Where = None
) -> Tensor:
    i = _counted(window_length, dtype, device)
    if window_length < 2:
        return i + 1
    period = window_length if periodic else window_length - 1
    rising = i * (2 / period)
    return torch.where(i <= period // 2, rising, 2 - rising)


def _kaiser(
    window_length: int,
    periodic: bool = True,
    beta: float = 12.0,
    dtype: Type = None,
    device: Where = None,
) -> Tensor:
    i = _counted(window_length, dtype, device)
    if window_length < 2:
        return i + 1
    half = (window_length if periodic else window_length - 1) / 2
    angle = (1 - ((i - half) / half) ** 2).sqrt()
    return torch.special.i0(angle * beta) / torch.special.i0(torch.full_like(i, beta))


def _fftfreq(n: int, d: float = 1.0, dtype: Type = None, device: Where = None) -> Tensor:
    i = _counted(n, dtype, device)
    return torch.where(i < (n + 1) // 2, i, i - n) * (1 / (n * d))


def _rfftfreq(n: int, d: float = 1.0, dtype: Type = None, device: Where = None) -> Tensor:
    return _counted(n // 2 + 1, dtype, device) * (1 / (n * d))


def _in_triangle(m: int, device: Where) -> tuple[Tensor, Tensor, Tensor]:
    """Of the m (m + 1) / 2 places of a lower triangle, row by row: their number, row and column."""
    place = torch.arange(m * (m + 1) // 2, device=device)
    row = ((torch.sqrt(8.0 * place.double() + 1) - 1) / 2).floor().long()
    return place, row, place - row * (row + 1) // 2


def _tril_indices(row: int, col: int, offset: int = 0, *, device: Where = None) -> Tensor:
    _, i, j = _in_triangle(row + offset, device)
    return torch.stack([i - offset, j])


def _triu_indices(row: int, col: int, offset: int = 0, *, device: Where = None) -> Tensor:
    m = row - offset
    _, i, j = _in_triangle(m, device)
    return torch.stack([m - 1 - i, row - 1 - j]).flip(1)


_FORMULAS: dict[Any, Callable[..., Tensor]] = {
    torch.bartlett_window: _bartlett,
    torch.blackman_window: _blackman,
    torch.fft.fftfreq: _fftfreq,
    torch.fft.rfftfreq: _rfftfreq,
    torch.hamming_window: _hamming,
    torch.hann_window: _hann,
    torch.kaiser_window: _kaiser,
    torch.linspace: _linspace,
    torch.logspace: _logspace,
    torch.tril_indices: _tril_indices,
    torch.triu_indices: _triu_indices,
}


def _probe(trial: Trial) -> bool:
    def spread(x: Tensor) -> Tensor:
        return x * torch.linspace(0, 1, len(x)) + torch.triu_indices(len(x), len(x), 1).sum()

    return trial(lambda: spread, *((torch.ones(n),) for n in (4, 5, 7))) and trial.captures == 1


@patch(
    "filled by size",
    "`torch.linspace`, windows and others need no new capture for another number of elements.",
    {(2, 13): "torch._dynamo.variables.torch:TorchInGraphFunctionVariable.call_function"},
    probe=_probe,
    needed_by=None,
)
def _call(call: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    formula = _FORMULAS.get(self.value) if callable(self.value) else None
    if formula is not None:
        numbers = [arg.realize() for arg in args]
        named = {name: value.realize() for name, value in kwargs.items()}
        if _is_of_sizes([*numbers, *named.values()]) and _fits(self.value, numbers, named):
            return UserFunctionVariable(formula).call_function(tx, numbers, named)
    return call(self, tx, args, kwargs)


def _probe_numpy(trial: Trial) -> bool:
    def spread(x: Tensor) -> Tensor:
        return x * torch.from_numpy(np.linspace(0, 1, len(x)))

    return trial(lambda: spread, *((torch.ones(n),) for n in (4, 5, 7))) and trial.captures == 1


@patch(
    "filled by size of numpy",
    "`np.linspace` needs no new capture for another number of elements.",
    {(2, 13): "torch._dynamo.variables.misc:NumpyVariable.call_function"},
    probe=_probe_numpy,
    needed_by=None,
)
def _call_numpy(call: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    if self.value is np.linspace and set(kwargs) <= {"num"}:
        numbers = [value.realize() for value in (*args, *kwargs.values())]
        if len(numbers) == 3 and _is_of_sizes(numbers):
            double = ConstantVariable.create(torch.float64)
            found = UserFunctionVariable(_linspace).call_function(tx, numbers, {"dtype": double})
            return found.call_method(tx, "numpy", [], {})
    return call(self, tx, args, kwargs)


def _is_of_sizes(values: Sequence[VariableTracker]) -> bool:
    """Whether an integer among the arguments changes, and there is no tensor."""
    symbols = [value for value in values if isinstance(value, SymNodeVariable)]
    plain = all(value.is_python_constant() for value in values if value not in symbols)
    return plain and any(isinstance(value.sym_num, torch.SymInt) for value in symbols)


def _fits(function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether the formula knows these arguments."""
    if function in (torch.tril_indices, torch.triu_indices):
        offset = [*args[2:], kwargs.get("offset", ConstantVariable.create(0))][0]
        if len(args) < 2 or len(args) > 3 or not offset.is_python_constant():
            return False
        below = offset.as_python_constant() * (1 if function is torch.tril_indices else -1) <= 0
        return below and _is_same(*args[:2]) and set(kwargs) <= {"offset", "device"}
    dtype = kwargs.get("dtype")
    known = {"steps", "base", "periodic", "alpha", "beta", "d", "dtype", "device", "start", "end"}
    known |= {"window_length", "n"}
    return set(kwargs) <= known and (dtype is None or dtype.as_python_constant() in _FLOATS)


def _is_same(row: Any, col: Any) -> bool:
    """Whether both are one symbol."""
    both = isinstance(row, SymNodeVariable) and isinstance(col, SymNodeVariable)
    return both and row.sym_num.node.expr == col.sym_num.node.expr
