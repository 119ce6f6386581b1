"""Guards on state that Dynamo reads at the capture and does not guard.

Attributes that a function, method or Python module does not have yet; the attributes of a module that hide
a parameter, buffer or submodule; the order of a `collections.OrderedDict`; the environment variables. The
version counter of a tensor is read in Python, at a graph break.
"""

from __future__ import annotations

import collections
import functools
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._dynamo import guards
from torch._dynamo.source import AttrSource, GlobalSource, Source
from torch._dynamo.variables.base import VariableTracker

from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import (
    LOAD_ATTRIBUTE,
    Probe,
    break_graph,
    calls,
    dynamo_output,
    patch,
)

_BUILTIN = "torch._dynamo.variables.builtin"
_MODULE = "torch._dynamo.variables.nn_module:UnspecializedNNModuleVariable"


def _always(gm: fx.GraphModule) -> bool:
    return True  # the graph does not show what was read


def _later_attribute(read: Callable[[Any], float]) -> Probe:
    """Whether `read` of a function notices an attribute that the function gets between two calls."""

    def make() -> Callable[[Tensor], Tensor]:
        def scaled(x: Tensor) -> Tensor:
            return x * 2 * read(scaled)

        return scaled

    def probe(trial: Trial) -> bool:
        x = torch.ones(3)
        return trial(make, (x,), (x,), between=lambda scaled: setattr(scaled, "factor", 3))

    return probe


def _loaded(function: Any) -> Any:
    try:
        return function.factor
    except AttributeError:
        return 1


@patch(
    "absent_attributes",
    "An attribute that a function or Python module gets after the capture takes effect.",
    {(2, 13): f"{_BUILTIN}:GetAttrBuiltinVariable._call_getattr"},
    probe=_later_attribute(lambda function: getattr(function, "factor", 1)),
    needed_by=_always,
)
def _get(call: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    name = args[1].as_python_constant() if args[1].is_python_constant() else None
    found = _own_of_partial(tx, args[0], name)
    if found is not None:
        return found
    _guard_absence(args[0], name)
    return call(self, tx, args, kwargs)


@patch(
    "absent_loaded_attributes",
    "`function.name` notices an attribute that a function or Python module gets after the capture.",
    {(2, 14): LOAD_ATTRIBUTE},
    probe=_later_attribute(_loaded),
    needed_by=_always,
)
def _load(load: Callable[..., Any], self: Any, attr: Any) -> Any:
    holder = self.stack[-1].realize()
    found = _own_of_partial(self, holder, attr)
    if found is not None:
        self.stack[-1] = found
        return
    _guard_absence(holder, attr)
    load(self, attr)


def _own_of_partial(tx: Any, partial: Any, name: str | None) -> Any:
    """An attribute that the user has set on a functools.partial, which Dynamo takes for absent, or None."""
    if not isinstance(partial, torch._dynamo.variables.FunctoolsPartialVariable):
        return None
    own = getattr(_real(partial), "__dict__", {})
    if name not in own:
        return None
    return VariableTracker.build(tx, own[name], AttrSource(partial.source, name))


def _real(partial: Any) -> Any:
    """The user's functools.partial; None for one that forward makes."""
    output: Any = dynamo_output()
    return None if partial.source is None else output.resolve_source_value(partial.source)


@patch(
    "hasattr",
    "`hasattr` notices an attribute that a function or Python module gets after the capture.",
    {(2, 13): f"{_BUILTIN}:HasAttrBuiltinVariable.call_function"},
    probe=_later_attribute(lambda function: 3 if hasattr(function, "factor") else 1),
    needed_by=_always,
)
def _has(call: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    if len(args) == 2:
        holder, name = (a.realize() if hasattr(a, "realize") else a for a in args)
        if name.is_python_constant():
            _guard_absence(holder, name.as_python_constant())
    return call(self, tx, args, kwargs)


def _guard_absence(obj: Any, name: str | None) -> None:
    """Guard that the object still lacks the attribute; that a function has the same ones for `__dict__`."""
    kinds = torch._dynamo.variables
    if name is None:
        return
    if isinstance(obj, kinds.FunctoolsPartialVariable):
        value = _real(obj)
    elif isinstance(obj, kinds.UserFunctionVariable):
        value = obj.fn
    elif isinstance(obj, (kinds.SkipFunctionVariable, kinds.PythonModuleVariable)):
        value = obj.value
    else:
        return
    output: Any = dynamo_output()
    if name == "__dict__" and isinstance(obj, kinds.UserFunctionVariable):
        names = frozenset(vars(value))
        source = GlobalSource(output.install_global_by_id("__function", value))
        guard_by(source, lambda f: vars(f).keys() == names, f"attributes of {value.__name__}")
    elif value is not None and not hasattr(value, name):
        source = GlobalSource(output.install_global_by_id("__holder", value))
        guards.install_guard(
            source.make_guard(functools.partial(guards.GuardBuilder.HASATTR, attr=name))
        )


def guard_by(source: Source, holds: Callable[[Any], bool], what: str) -> None:
    """Guard that `holds` is true for the object of `source`."""

    def unchanged(builder: Any, guard: Any) -> None:
        builder.get_guard_manager(guard).add_lambda_guard(holds, [what], guard.user_stack)

    guards.install_guard(source.make_guard(unchanged))


def _probe_hidden(trial: Trial) -> bool:
    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Tanh()

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) * 2

    x = torch.ones(3)
    return trial(Layers, (x,), (x,), between=lambda made: vars(made).update(layer=torch.exp))


@patch(
    "hidden_layers",
    "An entry of a module's `__dict__` hides a submodule, parameter or buffer of its name.",
    f"{_MODULE}.manually_trace_nn_module_getattr",
    probe=_probe_hidden,
    needed_by=_always,
)
def _look_up(look_up: Callable[..., Any], self: Any, tx: Any, name: str) -> Any:
    if self.source and name not in vars(self.value):
        absent = functools.partial(guards.GuardBuilder.NOT_PRESENT_IN_GENERIC_DICT, attr=name)
        guards.install_guard(self.source.make_guard(absent))
    return look_up(self, tx, name)


def _probe_order(trial: Trial) -> bool:
    def make() -> nn.Module:
        class Ordered(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.factors = collections.OrderedDict(a=2.0, b=3.0)

            def forward(self, x: Tensor) -> Tensor:
                for factor in self.factors.values():
                    x = x * factor + 1
                return x

        return Ordered()

    x = torch.ones(3)
    return trial(make, (x,), (x,), between=lambda made: made.factors.move_to_end("a"))


@patch(
    "order",
    "The order of an OrderedDict and the environment variables are read at each call.",
    {(2, 13): "torch._dynamo.variables.builder:VariableBuilder.__call__"},
    probe=_probe_order,
    needed_by=_always,
)
def _built(build: Callable[..., Any], self: Any, value: Any) -> Any:
    if isinstance(value, collections.OrderedDict) and len(value) > 1 and self.source is not None:
        keys = tuple(map(_key, value))
        guard_by(
            AttrSource(self.source, "keys"),  # a guard on the dict itself may not call Python
            lambda now: tuple(map(_key, now())) == keys,
            "order of an OrderedDict",
        )
    elif isinstance(value, os._Environ):
        variables = dict(value)
        # Dynamo ignores guards on globals of the standard library, such as that of `os.getenv`.
        output: Any = dynamo_output()
        source = GlobalSource(output.install_global_by_id("__environment", value))
        guard_by(source, lambda now: dict(now) == variables, "the environment variables")
    return build(self, value)


def _key(key: Any) -> Any:
    """The key, or its id where comparing keys may be slow or no bool."""
    return key if isinstance(key, (str, int, bytes)) else id(key)


def _probe_version(trial: Trial) -> bool:
    def read(x: Tensor) -> Tensor:
        y = x * 2
        return y * (1 + x._version)

    return trial(lambda: read, (torch.ones(3),)) and any("version" in p for p in trial.eager_pieces)


@patch(
    "version",
    "The version counter of a tensor is read at each call.",
    {(2, 13): "torch._dynamo.variables.tensor:TensorVariable.method_attr__version"},
    probe=_probe_version,
    needed_by=lambda gm: any("_tensor_version" in str(target) for target in calls(gm)),
)
def _version(read: Callable[..., Any], self: Any, tx: Any) -> Any:
    break_graph(
        "the version counter of a tensor, `_version`",
        "A captured graph does not count the changes of its tensors.",
    )
