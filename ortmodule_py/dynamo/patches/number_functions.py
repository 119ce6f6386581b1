"""Captures functions of `math` and numpy of numbers, once for all values of those that change.

Of `math`, Dynamo knows symbolic forms of few functions. Any other takes its numbers as constants, so that a
schedule as `math.exp(-step / 10)`, or the size in `math.log(len(x))`, would be a capture for each value. Functions
of numpy it computes on tensors, for which it takes all numbers as constants, and where a size or an `int` is made
of the result it breaks the graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._dynamo.variables import ConstantVariable, SymNodeVariable, UserFunctionVariable
from torch._dynamo.variables.base import VariableTracker
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from ortmodule_py.dynamo.computed_sizes import computed_size, mark_exact
from ortmodule_py.dynamo.patches.numpy_numbers import of_numpy, of_python
from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import patch

_LARGEST_EXPONENT = math.log(1.7e308)
_LN_2, _LN_10 = math.log(2), math.log(10)
_REST_OF_E = 5.3180815e-17
"""How far e is from `math.e`, over e."""

# ---- by functions that Dynamo knows: their conditions are guards -----------------------------------


def _exp(x: float) -> float:
    if x > _LARGEST_EXPONENT:
        raise OverflowError("math range error")
    power: float = math.e ** float(x)
    return power + power * (x * _REST_OF_E)


def _expm1(x: float) -> float:
    return _exp(x) - 1.0


def _log(x: float, base: float | None = None) -> float:
    if x <= 0:
        raise ValueError("math domain error")
    found = math.log2(float(x)) * _LN_2
    return found if base is None else found / _log(base)


def _log10(x: float) -> float:
    return _log(x) / _LN_10


def _log1p(x: float) -> float:
    return _log(1.0 + x)


def _pow(x: float, y: float) -> float:
    result: float = float(x) ** float(y)
    return result


def _fabs(x: float) -> float:
    return abs(float(x))


def _hypot(x: float, y: float) -> float:
    return math.sqrt(float(x) ** 2 + float(y) ** 2)


def _atan2(y: float, x: float) -> float:
    if x == 0:
        return (y > 0) * (math.pi / 2) - (y < 0) * (math.pi / 2)
    angle = math.atan(float(y) / float(x))
    if x > 0:
        return angle
    return angle - math.pi if y < 0 else angle + math.pi


def _fmod(x: float, y: float) -> float:
    if y == 0:
        raise ValueError("math domain error")
    rest = abs(float(x)) % abs(float(y))
    return rest if x >= 0 else -rest


def _degrees(x: float) -> float:
    return float(x) * (180.0 / math.pi)


def _radians(x: float) -> float:
    return float(x) * (math.pi / 180.0)


_OF_MATH: dict[Any, Callable[..., float]] = {
    math.atan2: _atan2,
    math.degrees: _degrees,
    math.fmod: _fmod,
    math.radians: _radians,
    math.exp: _exp,
    math.expm1: _expm1,
    math.log: _log,
    math.log10: _log10,
    math.log1p: _log1p,
    math.pow: _pow,
    math.fabs: _fabs,
    math.hypot: _hypot,
}


_OF_INTEGERS = (math.comb, math.gcd, math.isqrt, math.lcm, math.perm)
"""Functions from sizes to a size, which no formula in symbols gives."""


def _np_sqrt(x: float) -> float:
    return math.sqrt(float(x)) if x >= 0 else math.nan


def _np_exp(x: float) -> float:
    return math.inf if x > _LARGEST_EXPONENT else _exp(x)


def _np_log(x: float) -> float:
    if x <= 0:
        return -math.inf if x == 0 else math.nan
    return _log(x)


def _np_log2(x: float) -> float:
    if x <= 0:
        return -math.inf if x == 0 else math.nan
    return math.log2(float(x))


def _np_log10(x: float) -> float:
    return _np_log(x) / _LN_10


_KEEPS_INTEGERS = isinstance(np.ceil(3), np.integer)
"""Whether numpy rounds an integer to an integer, as from 2.1 on."""


def _np_ceil(x: float) -> float:
    return x if isinstance(x, int) and _KEEPS_INTEGERS else float(math.ceil(x))


def _np_floor(x: float) -> float:
    return x if isinstance(x, int) and _KEEPS_INTEGERS else float(math.floor(x))


def _np_maximum(x: float, y: float) -> float:
    greater = max(x, y)
    return greater if isinstance(x, int) and isinstance(y, int) else float(greater)


def _np_minimum(x: float, y: float) -> float:
    less = min(x, y)
    return less if isinstance(x, int) and isinstance(y, int) else float(less)


def _np_clip(x: float, low: float, high: float) -> float:
    return _np_minimum(_np_maximum(x, low), high)


def _np_round(x: float) -> float:
    return x if isinstance(x, int) and _KEEPS_INTEGERS else float(round(x))


def _np_prod(factors: Sequence[float]) -> float:
    product: float = 1
    for factor in factors:
        product = product * factor
    return product


def _np_mean(terms: Sequence[float]) -> float:
    return sum(terms) / len(terms)


_OF_NUMPY: dict[Any, Callable[..., float]] = {
    np.abs: lambda x: abs(x),
    np.ceil: _np_ceil,
    np.clip: _np_clip,
    np.cos: lambda x: math.cos(float(x)),
    np.exp: _np_exp,
    np.floor: _np_floor,
    np.log: _np_log,
    np.log10: _np_log10,
    np.log2: _np_log2,
    np.maximum: _np_maximum,
    np.minimum: _np_minimum,
    np.round: _np_round,
    np.sin: lambda x: math.sin(float(x)),
    np.sqrt: _np_sqrt,
    np.square: lambda x: x * x,
    np.tanh: lambda x: math.tanh(float(x)),
}
_OF_LISTS: dict[Any, Callable[[Sequence[float]], float]] = {
    np.max: lambda numbers: max(numbers),
    np.mean: _np_mean,
    np.min: lambda numbers: min(numbers),
    np.prod: _np_prod,
    np.sum: lambda numbers: sum(numbers),
}
"""Functions of numpy of one list or tuple of numbers."""


def _is_symbol(value: VariableTracker) -> bool:
    if not isinstance(value, SymNodeVariable):
        return False
    return not isinstance(value.sym_num, torch.SymBool) and not free_unbacked_symbols(value.sym_num)


def _is_number(value: VariableTracker) -> bool:
    constant = isinstance(value, ConstantVariable) and type(value.value) in (int, float)
    return constant or _is_symbol(value)


def _operands(numbers: Sequence[VariableTracker]) -> list[Any]:
    """The numbers of constants, and the nodes that compute the others."""
    return [
        number.as_python_constant() if number.is_python_constant() else number.as_proxy().node
        for number in numbers
    ]


# ---- functions of math -----------------------------------------------------------------------------


def _probe_math(trial: Trial) -> bool:
    def faded(x: Tensor, t: float) -> Tensor:
        return x * math.exp(-t) + math.log(t) + math.log(len(x))

    given = ((torch.ones(rows), 0.5 * rows) for rows in (3, 4, 5, 6, 7))
    return trial(lambda: faded, *given) and trial.captures <= 2


@patch(
    "functions of math",
    "`math.exp`, `math.log` and others of numbers that change need no new capture.",
    {(2, 13): "torch._dynamo.variables.torch:TorchInGraphFunctionVariable.call_function"},
    probe=_probe_math,
    needed_by=None,
)
def _call(call: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    formula = _OF_MATH.get(self.value) if callable(self.value) else None
    if formula is not None and args and not kwargs:
        given = [arg.realize() for arg in args]
        if all(map(_is_number, given)) and any(map(_is_symbol, given)):
            given = [of_python(number) for number in given]
            found = UserFunctionVariable(formula).call_function(tx, given, {})
            mark_exact(found, self.value, _operands(given))
            return found
    if self.value in _OF_INTEGERS and not kwargs:
        given = [arg.realize() for arg in args]
        if all(map(_is_number, given)) and any(map(_is_symbol, given)):
            found = computed_size(tx, self.value, _operands(given))
            if found is not None:
                return found
    return call(self, tx, args, kwargs)


# ---- functions of numpy ----------------------------------------------------------------------------


def _probe_numpy(trial: Trial) -> bool:
    def flat(x: Tensor, t: float) -> Tensor:
        return x.reshape(int(np.prod(x.shape))) * np.exp(-t) / np.sqrt(len(x))

    given = ((torch.ones(rows, 2), 0.5 * rows) for rows in (3, 4, 5, 6, 7))
    return trial(lambda: flat, *given) and trial.captures <= 2


@patch(
    "functions of numpy",
    "`np.prod(x.shape)`, `np.exp` and others of numbers are numbers, and need no new capture for others.",
    {(2, 13): "torch._dynamo.variables.misc:NumpyVariable.call_function"},
    probe=_probe_numpy,
    needed_by=None,
)
def _call_numpy(call: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    found = _number(tx, self.value, args) if args and not kwargs else None
    return call(self, tx, args, kwargs) if found is None else found


def _number(tx: Any, function: Any, args: Any) -> VariableTracker | None:
    """The result for numbers; None for other functions and arguments."""
    of_list = _OF_LISTS.get(function) if callable(function) else None
    formula = of_list or (_OF_NUMPY.get(function) if callable(function) else None)
    if formula is None:
        return None
    given = numbers = [arg.realize() for arg in args]
    if of_list is not None:
        items = given[0].items if isinstance(given[0], _LISTS) and len(given) == 1 else []
        numbers = [item.realize() for item in items]
    if not numbers or not all(map(_is_number, numbers)):
        return None
    if any(map(_is_symbol, numbers)):
        found = UserFunctionVariable(formula).call_function(tx, given, {})
        if of_list is None:
            mark_exact(found, function, _operands(given))
        return of_numpy(found)
    values = [number.as_python_constant() for number in numbers]
    result = function(values) if of_list else function(*values)
    return of_numpy(ConstantVariable.create(result.item()))


_LISTS = torch._dynamo.variables.lists.BaseListVariable
