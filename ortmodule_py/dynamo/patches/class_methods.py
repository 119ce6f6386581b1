"""Captures autograd functions whose forward and backward are class methods, as entmax's (`forward(cls, ctx, x)`).

Dynamo gives them the class twice, which raises an error in its trace.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.source import AttrSource
from torch._dynamo.variables import (
    NNModuleVariable,
    UserDefinedClassVariable,
    UserMethodVariable,
)
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.misc import (
    AutogradFunctionContextVariable,
    AutogradFunctionVariable,
)

from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import patch


class _Doubled(torch.autograd.Function):
    factor = 2.0

    @classmethod
    def forward(cls, ctx: Any, x: Tensor) -> Tensor:
        return x * cls.factor

    @classmethod
    def backward(cls, ctx: Any, grad: Tensor) -> Any:
        return grad * (cls.factor + 1)


class _Tripled(_Doubled):
    factor = 3.0

    @classmethod
    def forward(cls, ctx: Any, x: Tensor) -> Tensor:
        return super().forward(ctx, x)


def _probe(trial: Trial) -> bool:
    x = torch.ones(3, requires_grad=True)
    same = trial(lambda: lambda x: _Doubled.apply(x).tanh(), (x,))
    return same and not trial.graph_breaks


def _probe_super(trial: Trial, trains: bool = True) -> bool:
    x = torch.ones(3, requires_grad=trains)
    same = trial(lambda: lambda x: _Tripled.apply(x).tanh(), (x,))
    return same and not trial.graph_breaks and not trial.eager_pieces


def _probe_no_gradient(trial: Trial) -> bool:
    return _probe_super(trial, trains=False)


@patch(
    "autograd_function_class_methods",
    "An autograd.Function whose forward and backward are class methods breaks no graph.",
    {
        (
            2,
            13,
        ): "torch._dynamo.variables.higher_order_ops:AutogradFunctionApplyVariable.prepare_fn_vt"
    },
    probe=_probe,
    needed_by=None,
)
def _prepared(
    prepare: Callable[..., Any], self: Any, tx: Any, ctx: Any, method_name: str, args: list[Any]
) -> Any:
    function = self.fwd_fn if method_name == "forward" else self.bwd_fn
    if not isinstance(function, types.MethodType):
        return prepare(self, tx, ctx, method_name, args)
    place = self.parent_source
    method = UserMethodVariable(
        function.__func__,
        UserDefinedClassVariable(function.__self__, source=place),
        source=place and AttrSource(place, member=method_name),
    )
    return method, [ctx, *args]


@patch(
    "autograd_function_super",
    "`super()` in such a class method is traced.",
    {(2, 13): "torch._dynamo.variables.misc:SuperVariable._resolved_getattr_and_source"},
    probe=_probe_super,
    needed_by=None,
)
def _resolved(resolve: Callable[..., Any], self: Any, tx: Any, name: str) -> Any:
    if isinstance(self.typevar, AutogradFunctionVariable):
        plain = UserDefinedClassVariable(self.typevar.fn_cls, source=self.typevar.source)
        self = type(self)(plain, self.objvar, source=self.source)
    return resolve(self, tx, name)


@patch(
    "autograd_function_class",
    "Such a class method knows where its class is from where nothing needs a gradient, too.",
    {(2, 13): "torch._dynamo.variables.misc:AutogradFunctionVariable.call_apply"},
    probe=_probe_no_gradient,
    needed_by=None,
)
def _applied(
    apply: Callable[..., Any], self: Any, tx: Any, args: list[Any], kwargs: dict[str, Any]
) -> Any:
    function = self.fn_cls.forward
    is_method = isinstance(function, types.MethodType)
    if not is_method or self.source is None or _may_train((args, kwargs)):
        return apply(self, tx, args, kwargs)
    method = UserMethodVariable(
        function.__func__,
        UserDefinedClassVariable(self.fn_cls, source=self.source),
        source=AttrSource(self.source, member="forward"),
    )
    ctx = AutogradFunctionContextVariable.create(tx, args, kwargs)
    return method.call_function(tx, [ctx, *args], kwargs)


def _may_train(arguments: Any) -> bool:
    """Whether Dynamo would trace backward, too."""
    found = []

    def visit(value: VariableTracker) -> None:
        trains = value.is_tensor() and getattr(value, "requires_grad", None) is not False
        found.append(trains or isinstance(value, NNModuleVariable))

    VariableTracker.visit(visit, arguments)
    return torch.is_grad_enabled() and any(found)
