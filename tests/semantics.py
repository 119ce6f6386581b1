"""Runs the same steps on a module in eager PyTorch and under ORTModule and compares everything."""

from __future__ import annotations

import copy
import dataclasses
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ortmodule_py import DebugOptions, LogLevel, ORTModule, last_run_report
from ortmodule_py.dynamo.patches.table import running_torch

QUIET = DebugOptions(log_level=LogLevel.ERROR)


class Calls(nn.Module):
    """A layer `fc` and a forward that is given; further attributes by name."""

    def __init__(self, function: Callable[..., Any], **attributes: Any) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.function = function
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)


def original(module: nn.Module) -> nn.Module:
    """The module itself, without the wrapper."""
    return module.module if isinstance(module, ORTModule) else module


def assert_same(got: Any, want: Any, where: str = "result") -> None:
    """Types, structure and values; of tensors also dtype, strides and whether they need a gradient."""
    assert type(got) is type(want), f"{where}: {type(got)} but eager {type(want)}"
    if isinstance(want, Tensor):
        assert got.requires_grad == want.requires_grad, where
        assert got.stride() == want.stride(), where
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5, equal_nan=True, msg=where)
    elif dataclasses.is_dataclass(want) and not isinstance(want, (dict, type)):
        for field in dataclasses.fields(want):
            name = field.name
            assert_same(getattr(got, name), getattr(want, name), f"{where}.{name}")
    elif isinstance(want, dict):
        assert list(got) == list(want), where
        for key in want:
            assert_same(got[key], want[key], f"{where}[{key!r}]")
    elif isinstance(want, (list, tuple)):
        assert len(got) == len(want), where
        for i, (a, b) in enumerate(zip(got, want, strict=True)):
            assert_same(a, b, f"{where}[{i}]")
    else:
        assert got == want, f"{where}: {got!r} but eager {want!r}"


def as_in_eager(module: nn.Module, step: Callable[[Any], Any]) -> dict[str, Any]:
    """`step` on a copy in eager and on the wrapper: results, gradients and buffers are the same.

    Gives the report of the run.
    """
    torch._dynamo.reset()
    model = ORTModule(copy.deepcopy(module), QUIET)
    found: list[Any] = []
    for runner in (copy.deepcopy(module), model):
        torch.manual_seed(1)
        random.seed(1)
        result = step(runner)
        inner = original(runner)
        gradients = {name: p.grad for name, p in inner.named_parameters()}
        found.append((result, gradients, dict(inner.named_buffers())))
    for part, got, want in zip(("result", "gradient", "buffer"), found[1], found[0], strict=True):
        assert_same(got, want, part)
    return dict(last_run_report(model))


def assert_whole(report: dict[str, Any], captures: int = 1) -> None:
    """Compiled without a graph break, where that takes replacements in Dynamo which are for torch 2.13 on.

    Before, the results are what counts: `as_in_eager` compares them.
    """
    if running_torch() >= (2, 13):
        assert_compiled(report, captures)
        assert not report["graph_breaks"]


def assert_compiled(report: dict[str, Any], captures: int = 1) -> None:
    """All of it ran in the engine, in so many captures at most."""
    assert report["compiled"], report["eager_pieces"]
    assert report["captures"] <= captures, report["captures"]


def assert_captures_end(eager: nn.Module, draw: Callable[[], Sequence[Any]], steps: int) -> None:
    """A copy of `eager` under ORTModule has its gradients of a loss, and no capture from the third step on.

    `draw` gives the arguments of a step.
    """
    torch._dynamo.reset()
    model = ORTModule(copy.deepcopy(eager), QUIET)
    counted = torch._dynamo.utils.counters["frames"]
    for step in range(steps):
        arguments = draw()
        for module in (eager, model):
            module.zero_grad()
            module(*arguments).backward()
        if step == 1:
            converted = counted["total"]
    assert counted["total"] == converted
    assert model._compiler.pieces
    for wanted, parameter in zip(eager.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, wanted.grad)
