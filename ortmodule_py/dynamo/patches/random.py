"""Numbers of Python's `random` in forward.

The graph breaks where a user's `random.Random` draws: Dynamo makes the generator's state at the capture a
constant, so every call would draw the same numbers. The functions of `random` stay in the graph, and so does
a generator that forward itself makes.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, fx
from torch._dynamo.variables.tensor import UnspecializedPythonVariable
from torch._dynamo.variables.user_defined import call_random_fn

from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import break_graph, patch, used_objects


def _probe(trial: Trial) -> bool:
    def make() -> Callable[[Tensor], Tensor]:
        generator = random.Random(3)
        return lambda x: x * generator.random()

    return trial(make, *((torch.ones(3),) for _ in range(3)))


def _has_generators(gm: fx.GraphModule) -> bool:
    return any(isinstance(o, random.Random) for o in used_objects())


@patch(
    "random",
    "A random.Random made outside of forward draws new numbers at each call.",
    "torch._dynamo.variables.misc:RandomVariable.call_method",
    probe=_probe,
    needed_by=_has_generators,
)
def _call(
    call_method: Callable[..., Any], self: Any, tx: Any, name: str, *args: Any, **kwargs: Any
) -> Any:
    if getattr(self, "source", None) is None:  # made by forward itself
        return call_method(self, tx, name, *args, **kwargs)
    break_graph(
        "method of a random.Random",
        "its state at the capture would be a constant of the graph",
        "`random.random()` and the other functions of `random` stay in the graph.",
    )


def _probe_function(trial: Trial) -> bool:
    def make() -> Callable[[Tensor], Tensor]:
        return lambda x: x.sin() + 0 * random.random()

    return trial(make, (torch.ones(3),)) and not trial.graph_breaks


@patch(
    "random.random",
    "Models that call random.random() are compiled.",
    {(2, 13): "torch._dynamo.variables.functions:SkipFunctionVariable.call_function"},
    probe=_probe_function,
    needed_by=None,
)
def _call_function(call: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    # Dynamo knows random.random, but torch 2.13 takes bound methods of C for functions that it must skip.
    constant = all(value.is_python_constant() for value in (*args, *kwargs.values()))
    if constant and self.value == random.random:
        return call_random_fn(tx, random.random, list(args), kwargs)
    return call(self, tx, args, kwargs)


def _probe_precision(trial: Trial) -> bool:
    def make() -> Callable[[Tensor], Tensor]:
        return lambda x: x.sin() + 0 * random.random()

    with _default_dtype(torch.bfloat16):
        return trial(make, (torch.ones(3),)) and bool(trial.graph_breaks)


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@patch(
    "precision of random numbers",
    "Numbers of random are not rounded to a default dtype of 16 bits.",
    "torch._dynamo.variables.builder:VariableBuilder.wrap_unspecialized_primitive",
    probe=_probe_precision,
    needed_by=None,
)
def _wrap(wrap: Callable[..., Any], self: Any, value: Any) -> Any:
    # Dynamo makes the number a tensor of the default dtype.
    dtype = torch.get_default_dtype()
    if isinstance(value, float) and dtype.itemsize < 4:
        break_graph(
            "number of random",
            f"it would be rounded to the default dtype, {dtype}",
            "Set the default dtype to torch.float32 before forward, or draw the number outside of the module.",
        )
    return wrap(self, value)


def _probe_arithmetic(trial: Trial) -> bool:
    def make() -> Callable[[Tensor], Tensor]:
        return lambda x: x.sin() + 0 * (1 - random.uniform(0.1, 0.9))

    return trial(make, (torch.ones(3),)) and not trial.eager_pieces


@patch(
    "arithmetic on random numbers",
    "Arithmetic on numbers of random stays in the graph.",
    {(2, 13): "torch._dynamo.variables.builtin:BuiltinVariable.unwrap_unspec_args_kwargs"},
    probe=_probe_arithmetic,
    needed_by=None,
)
def _unwrap(unwrap: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    # torch 2.13 knows the numbers of this capture, which are examples, but does not find them here.
    values = [*args, *kwargs.values()]
    if not any(isinstance(value, UnspecializedPythonVariable) for value in values):
        return unwrap(args, kwargs)
    return [_example(value) for value in args], {k: _example(v) for k, v in kwargs.items()}


def _example(value: Any) -> Any:
    of_random = isinstance(value, UnspecializedPythonVariable)
    return value.raw_value if of_random else value.as_python_constant()
