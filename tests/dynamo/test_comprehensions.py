"""Comprehensions and calls that break the graph: what stands around them is captured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ortmodule_py.dynamo.loops import outline_call
from tests.semantics import Calls, as_in_eager, assert_compiled


def _list(self: Any, x: Tensor, parts: Tensor) -> Tensor:
    ends = [int(p.item()) + len(self.layers) for p in parts]
    return self.fc(x) * sum(ends)


def _enumerated(self: Any, x: Tensor, parts: Tensor) -> Tensor:
    y = self.fc(x)
    self.logged = [(i, p.item()) for i, p in enumerate(parts)]
    return self.layers[0](y).sin()


def _named(self: Any, x: Tensor, parts: Tensor) -> Tensor:
    y = self.fc(x)
    named = {f"part {i}": p.item() for i, p in enumerate(parts)}
    return self.layers[1](y) * named["part 1"]


def _nested(self: Any, x: Tensor, parts: Tensor) -> Tensor:
    y, i = self.fc(x), 3
    table = [[p.item() * k for k, _ in enumerate(self.layers)] for i, p in enumerate(parts)]
    return self.layers[0](y) * table[1][1] + i


def _zipped(self: Any, x: Tensor, parts: Tensor) -> Tensor:
    y = self.fc(x)
    return torch.stack([layer(y) * p.item() for layer, p in zip(self.layers, parts, strict=True)])


def _generated(self: Any, x: Tensor, parts: Tensor) -> Tensor:
    y = self.fc(x)
    return y.sin() * sum((p.item() + len(self.layers) for p in parts), start=1) + y


def _twice(self: Any, x: Tensor, parts: Tensor) -> Tensor:
    least = min((p.item() for p in parts), default=0)
    y = self.layers[0](self.fc(x) * least).tanh()
    return y * max(p.item() for p in parts)


def _in_closure(self: Any, x: Tensor, parts: Tensor) -> Tensor:
    y = self.fc(x)

    def greatest(least: float) -> float:
        return max(least, max(p.item() * y.shape[0] for p in parts))

    return self.layers[1](y) * greatest(0.5)


FORWARDS = [_list, _zipped, _enumerated, _named, _nested, _generated, _twice, _in_closure]


def _steps(model: Any) -> list[Tensor]:
    found = []
    for step in range(4):
        y = model(torch.randn(3 + step % 2, 4), torch.tensor([1.5, 2.0]) + step)
        y.square().mean().backward()
        found.append(y)
    return found


@pytest.mark.parametrize("forward", FORWARDS)
def test_only_the_comprehension_runs_in_python(forward: Callable[..., Tensor]) -> None:
    layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
    module = Calls(forward, layers=layers)
    report = as_in_eager(module, _steps)
    assert_compiled(report, captures=9)
    assert report["graph_breaks"]


def _chosen(x: Any, y: Any, flag: bool) -> Any:
    return x * sum((a + y for a in (x if flag else [y])), start=y) - y


def _assigned(x: Any) -> Any:
    return sum((last := a) for a in x) + last


def _in_try(x: Any) -> Any:
    try:
        return sum(a for a in x)
    finally:
        x.clear()


def _or_not(x: Any, flag: bool) -> Any:
    if flag:
        y = 2
    return max(x, y)


def _last_call(function: Callable[..., Any]) -> int:
    """The offset of the last call, which computes the result."""
    import dis

    calls = [i.offset for i in dis.get_instructions(function) if i.opname == "CALL"]
    return calls[-1]


def test_the_call_is_a_function_of_its_own() -> None:
    code = _chosen.__code__
    outlined = outline_call(code, _last_call(_chosen))
    assert outlined is not None and outlined.part in outlined.code.co_consts
    assert outlined.part.co_varnames[: outlined.part.co_argcount] == ("flag", "x")
    same = type(_chosen)(outlined.code, globals())
    for flag in (True, False):
        x = torch.arange(3.0)
        assert torch.equal(same(x, 2.0, flag), _chosen(x, 2.0, flag))


@pytest.mark.parametrize("function", [_in_try, _or_not])
def test_calls_that_stay(function: Callable[..., Any]) -> None:
    assert outline_call(function.__code__, _last_call(function)) is None
    assert outline_call(function.__code__, 0) is None  # no call
