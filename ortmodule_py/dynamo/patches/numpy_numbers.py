"""Numbers of numpy that `number_functions` makes, which Dynamo takes for those of Python.

Behind a graph break and as results they are numbers of numpy again, and their methods are known here.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._dynamo.bytecode_transformation import create_call_function
from torch._dynamo.variables import (
    ConstantVariable,
    GetAttrVariable,
    SymNodeVariable,
    UserFunctionVariable,
)
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.lazy import LazyVariableTracker

from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import LOAD_ATTRIBUTE, break_graph, patch

_TYPE = "_ortmodule_numpy_type"
_INTEGERS = (int, "int", np.int64, np.int32, "int64", "int32")
_FLOATS = (float, "float", np.float64, "float64")


def of_numpy(number: VariableTracker) -> VariableTracker:
    """The number, of Python for Dynamo, as one of numpy."""
    number = number.realize()
    return _copied(number, np.int64 if number.python_type() is int else np.float64)


def _copied(number: VariableTracker, kind: Any) -> VariableTracker:
    made = copy.copy(number)
    made.source = None
    vars(made)[_TYPE] = kind
    return made


def _numpy_type(value: Any) -> Any:
    return vars(value).get(_TYPE) if isinstance(value, VariableTracker) else None


def _probe_result(trial: Trial) -> bool:
    def shown(x: Tensor) -> Tensor:
        size, width = np.prod(x.shape), np.sqrt(4)
        torch._dynamo.graph_break()
        return x * size.astype(np.float32).item() + width.astype(np.float32).item()

    return trial(lambda: shown, *((torch.ones(rows, 4),) for rows in (3, 4, 5)))


@patch(
    "numbers of numpy outside",
    "`np.prod(x.shape)` is a number of numpy behind a graph break, and as a result.",
    {(2, 13): "torch._dynamo.codegen:PyCodegen.__call__"},
    probe=_probe_result,
    needed_by=None,
)
def _reconstruct(call: Callable[..., Any], self: Any, value: Any, allow_cache: bool = True) -> Any:
    kind = _numpy_type(value)
    if kind is None:
        return call(self, value, allow_cache)
    self.add_push_null(lambda: self.load_import_from("numpy", kind.__name__))
    call(self, value, allow_cache)
    self.extend_output(create_call_function(1, False))
    self.clear_tos()


# ---- arithmetic, and tensors made of them ------------------------------------------------------------

_ARITHMETIC = {
    getattr(operator, name)
    for name in (
        *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "neg", "pos", "abs"),
        *("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow"),
    )
} | {abs}
_MADE = (torch.tensor, torch.as_tensor, torch.asarray)


def _probe_arithmetic(trial: Trial) -> bool:
    def shifted(x: Tensor, t: float) -> Tensor:
        wide = torch.tensor(1 / np.sqrt(4)) + torch.as_tensor([-np.exp(t) * 2, 1.0])
        return x + wide.to(torch.float32) * (2 if wide.dtype is torch.float64 else 3)

    return trial(lambda: shifted, *((torch.ones(2), 0.5 * i) for i in range(3)))


@patch(
    "arithmetic on numbers of numpy",
    "Arithmetic on a number of numpy makes one of numpy.",
    {(2, 13): "torch._dynamo.variables.builtin:BuiltinVariable.call_function"},
    probe=_probe_arithmetic,
    needed_by=None,
)
def _compute(call: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    if self.fn in (isinstance, type) and args and _numpy_type(args[0]) is not None:
        kinds = [arg.as_python_constant() for arg in args[1:]]
        kind = _numpy_type(args[0])
        return VariableTracker.build(tx, issubclass(kind, *kinds) if kinds else kind)
    result = call(self, tx, args, kwargs)
    if self.fn in _ARITHMETIC and any(_numpy_type(arg) is not None for arg in args):
        number = isinstance(result, (ConstantVariable, SymNodeVariable))
        if number and result.python_type() in (int, float):
            return of_numpy(result)
    return of_python(result) if self.fn in (int, float) else result


@patch(
    "tensors of numbers of numpy",
    "A tensor that is made of a number of numpy has its type.",
    {(2, 13): "torch._dynamo.variables.torch:TorchInGraphFunctionVariable.call_function"},
    probe=_probe_arithmetic,
    needed_by=None,
)
def _make(call: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    if self.value in _MADE and len(args) == 1 and "dtype" not in kwargs and _has_double(args[0]):
        kwargs = {**kwargs, "dtype": VariableTracker.build(tx, torch.float64)}
    return call(self, tx, args, kwargs)


def _has_double(value: VariableTracker) -> bool:
    value = value.realize()
    if isinstance(value, torch._dynamo.variables.lists.BaseListVariable):
        return any(map(_has_double, value.items))
    return _numpy_type(value) is np.float64


def of_python(number: VariableTracker) -> VariableTracker:
    """The number, perhaps one of numpy, as one of Python."""
    return number if _numpy_type(number) is None else _copied(number, None)


# ---- methods ---------------------------------------------------------------------------------------


def _probe_methods(trial: Trial) -> bool:
    def first(x: Tensor) -> Tensor:
        dims, rows = np.sqrt(4), np.ceil(np.log(len(x)))
        return x[: rows.astype(int).item(), : dims.astype("int").item()] * 2

    same = trial(lambda: first, *((torch.ones(rows, 4),) for rows in (3, 4, 5, 6, 7)))
    return same and not trial.graph_breaks and not trial.eager_pieces


@patch(
    "attributes of numbers of numpy",
    "`np.ceil(n).astype(int)` is captured.",
    {(2, 13): "torch._dynamo.variables.builtin:GetAttrBuiltinVariable._call_getattr"},
    probe=_probe_methods,
    needed_by=None,
)
def _get(call: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    method = _method_of(args[0].realize(), args[1].as_python_constant())
    return call(self, tx, args, kwargs) if method is None else method


@patch(
    "loaded attributes of numbers of numpy",
    "`np.ceil(n).astype(int)` is captured.",
    {(2, 14): LOAD_ATTRIBUTE},
    probe=_probe_methods,
    needed_by=None,
)
def _load(load: Callable[..., Any], self: Any, attr: Any) -> None:
    holder = self.stack[-1]
    if isinstance(holder, LazyVariableTracker):
        holder = holder.unwrap()  # without a look at what is not a number
    method = _method_of(holder, attr)
    if method is None:
        load(self, attr)
    else:
        self.stack[-1] = method


def _method_of(holder: Any, name: str) -> VariableTracker | None:
    """A method of a number of numpy that is known here; None for other attributes and holders."""
    kind = _numpy_type(holder)
    if kind is not None and name in ("item", "astype"):
        return GetAttrVariable(holder, name)
    constant = kind is not None and isinstance(holder, ConstantVariable)
    if constant and hasattr(kind, name) and not hasattr(holder.value, name):
        break_graph(f"`{name}` of a number of numpy", "Dynamo knows numbers of Python.")
    return None


def _converted(tx: Any, number: VariableTracker, name: str, args: Any) -> VariableTracker | None:
    """The result of `item()` and `astype(...)` of a number of numpy; None for others."""
    convert: Any = None
    if name == "item" and not args:
        return _copied(number, None)
    if name == "astype" and len(args) == 1:
        wanted = getattr(args[0].realize(), "fn", None) or getattr(args[0].realize(), "value", None)
        convert = int if wanted in _INTEGERS else float if wanted in _FLOATS else None
    if convert is None:
        return None
    number = of_python(number)
    if isinstance(number, ConstantVariable):
        return of_numpy(ConstantVariable.create(convert(number.value)))
    function = (lambda x: int(x)) if convert is int else (lambda x: float(x))
    return of_numpy(UserFunctionVariable(function).call_function(tx, [number], {}))


def _call(call: Callable[..., Any], self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
    found = None
    if name in ("item", "astype") and not kwargs and _numpy_type(self) is not None:
        found = _converted(tx, self, name, args)
    return call(self, tx, name, args, kwargs) if found is None else found


for _what, _path in (
    ("constant", "constant:ConstantVariable"),
    ("symbolic", "tensor:SymNodeVariable"),
):
    patch(
        f"methods of {_what} numbers of numpy",
        "`np.ceil(n).astype(int)` is captured.",
        {(2, 13): f"torch._dynamo.variables.{_path}.call_method"},
        probe=_probe_methods,
        needed_by=None,
    )(_call)
