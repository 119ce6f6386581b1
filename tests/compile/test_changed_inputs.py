"""Arguments of pieces that take on values with a gradient in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ortmodule_py import ORTModule, last_run_report
from tests.semantics import as_in_eager


class Behind(nn.Module):
    """What a function does to a layer's result, and to zeros, behind a graph break."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.function = function

    def forward(self, x: Tensor) -> Any:
        hidden, slots = self.first(x), torch.zeros_like(x)
        torch._dynamo.graph_break()
        return self.function(self, hidden, slots)


def _masked(self: Any, hidden: Tensor, slots: Tensor) -> Tensor:
    hidden[hidden > 0.2] = 0
    y = self.second(hidden)
    torch._dynamo.graph_break()
    result: Tensor = y * hidden
    return result


def _slots(self: Any, hidden: Tensor, slots: Tensor) -> Tensor:
    slots[:, 0] = self.second(hidden)[:, 1]
    slots[:, 1] = hidden[:, 3] * hidden[:, 2]
    torch._dynamo.graph_break()
    return slots * slots


def _given_back(self: Any, hidden: Tensor, slots: Tensor) -> Any:
    same = hidden.mul_(2)
    torch._dynamo.graph_break()
    assert same is hidden
    return self.second(same), hidden


def _views(self: Any, hidden: Tensor, slots: Tensor) -> Any:
    hidden[:, 0] = self.second(hidden * 1)[:, 1]
    slots[:2] = hidden[1:3] + 1
    row, column = slots[1], hidden.t()[2:]
    torch._dynamo.graph_break()
    return self.second(hidden) * slots.sum(), row, column


def _aliased(self: Any, hidden: Tensor, slots: Tensor) -> Tensor:
    part = hidden[:, 1:]
    torch._dynamo.graph_break()
    hidden.mul_(2)
    y: Tensor = self.second(hidden) + part.sum()
    return y


def _step(model: Any) -> list[Tensor]:
    results = []
    for rows in (3, 5, 5):
        x = torch.linspace(-1, 1, rows * 4).view(rows, 4).requires_grad_()
        given = x * 1
        out = model(given)
        out = out if isinstance(out, tuple) else (out,)
        (sum(o.square().sum() for o in out) + given.sum()).backward()
        assert x.grad is not None
        results += [*out, x.grad, given]
    return results


FUNCTIONS = {
    "masked": _masked,
    "slots": _slots,
    "given back": _given_back,
    "views": _views,
}


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_a_changed_input_is_compiled(kind: str) -> None:
    torch._dynamo.reset()
    report = as_in_eager(Behind(FUNCTIONS[kind]), _step)
    assert report["compiled"] and report["graph_breaks"], report


class Caching(nn.Module):
    """Writes into a cache of the caller, and returns what it has of it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
        cache[:, 1] = self.fc(x)
        return cache[:, :2], self.fc(x)


def test_a_view_of_a_changed_argument_of_the_module() -> None:
    def step(model: Any) -> list[Tensor]:
        results = []
        for rows in (3, 5, 3):
            cache = torch.ones(rows, 3, 4)
            part, y = model(torch.linspace(-1, 1, rows * 4).view(rows, 4), cache)
            assert part._base is cache
            part.mul_(2)
            (y.sum() + cache.square().sum() + part.sum()).backward()
            results += [part, y, cache]
        return results

    torch._dynamo.reset()
    report = as_in_eager(Caching(), step)
    assert report["compiled"] and not report["graph_breaks"], report


def test_an_alias_of_a_changed_input_is_left_to_eager() -> None:
    torch._dynamo.reset()
    report = as_in_eager(Behind(_aliased), _step)
    (piece,) = report["eager_pieces"]
    assert "an argument that is changed in place shares memory with another" in piece


class Doubling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.fc(x.mul_(2))
        return y


def test_an_argument_of_the_module() -> None:
    torch._dynamo.reset()
    assert as_in_eager(Doubling(), _step)["compiled"]
    model, x = ORTModule(Doubling()), torch.ones(2, 4, requires_grad=True)
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        model(x)
    with torch.no_grad():
        model(x)
    assert torch.equal(x.detach(), torch.full((2, 4), 2.0))
    model(torch.ones(2, 4)).sum().backward()
    assert last_run_report(model)["graph_breaks"] == []
