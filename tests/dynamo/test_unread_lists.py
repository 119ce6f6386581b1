"""Lists that forward appends to: they may have any length."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.semantics import Calls, as_in_eager, assert_compiled, assert_whole, original

COMMON: list[Tensor] = []


def _steps(model: Any, count: int = 6) -> list[Any]:
    COMMON.clear()
    inner = original(model)
    found: list[Any] = []
    for i in range(count):
        result = model(torch.randn(3 + i % 3, 4))
        found.append(result)
        result.square().mean().backward()
    kept = getattr(inner, "kept", [])
    return [*found, list(kept), list(COMMON)]


def _of_attribute(m: Any, x: Tensor) -> Tensor:
    y = m.fc(x)
    m.kept.append(y.detach().mean())
    m.kept.append(len(x))
    return y.relu()


def _of_module(m: Any, x: Tensor) -> Tensor:
    y = m.fc(x)
    COMMON.append(y.detach())
    return y.relu()


def _in_place(m: Any, x: Tensor) -> Tensor:
    y = m.fc(x)
    noted = y.detach().sum(0)
    m.kept.append(noted)
    noted.mul_(2)
    return y + noted


USES: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "a list of the module": _of_attribute,
    "a global list": _of_module,
    "a value that is changed": _in_place,
}


@pytest.mark.parametrize("name", USES)
def test_a_list_that_grows(name: str) -> None:
    assert_whole(as_in_eager(Calls(USES[name], kept=[]), _steps), captures=1)


def test_a_deque_with_a_limit() -> None:
    module = Calls(_of_attribute, kept=collections.deque(maxlen=3))
    assert_whole(as_in_eager(module, _steps), captures=1)


def test_a_number_that_is_read() -> None:
    """The graph breaks between the method and its argument."""

    def noted(m: Any, x: Tensor) -> Tensor:
        y = m.fc(x)
        m.kept.append(y.mean().item())
        return y.relu()

    def step(model: Any) -> list[Any]:
        results = _steps(model)
        return [*results[:-2], torch.tensor(results[-2])]

    assert_compiled(as_in_eager(Calls(noted, kept=[]), step), captures=4)


def test_a_hook_that_notes() -> None:
    def step(model: Any) -> list[Any]:
        seen: list[Tensor] = []
        hook = original(model).fc.register_forward_hook(lambda m, x, y: seen.append(y.detach()))
        results = _steps(model)
        hook.remove()
        return [results, seen]

    def forward(m: Any, x: Tensor) -> Tensor:
        y: Tensor = m.fc(x).relu()
        return y

    assert_whole(as_in_eager(Calls(forward), step), captures=1)


def test_losses_that_are_gathered() -> None:
    """They take part in the gradient, and the list is emptied in between."""

    class Gathers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
            self.losses: list[Tensor] = []

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x).tanh()
                self.losses.append(x.square().mean())
            return x

    def step(model: Any) -> list[Any]:
        found = []
        for i in range(6):
            result = model(torch.randn(3 + i % 3, 4))
            losses = original(model).losses
            (result.sum() + sum(losses[-3:])).backward()
            found += [result, list(losses)]
            if i % 2:
                losses.clear()
        return found

    assert_whole(as_in_eager(Gathers(), step), captures=1)


def _reads_length(m: Any, x: Tensor) -> Tensor:
    m.kept.append(m.fc(x).detach().mean())
    return m.fc(x) * len(m.kept)


def _reads_items(m: Any, x: Tensor) -> Tensor:
    y = m.fc(x)
    m.kept.append(y.detach().mean())
    return y * torch.stack(m.kept).sum()


def _reads_first(m: Any, x: Tensor) -> Tensor:
    y = m.fc(x) * (1 + len(m.kept))
    m.kept.append(y.detach().mean())
    return y


def _of_other_name(m: Any, x: Tensor) -> Tensor:
    y = m.fc(x)
    m.kept.append(y.detach().mean())
    COMMON.append(y.detach())
    return y * (len(COMMON) + len(m.kept))


def _in_checkpoint(m: Any, x: Tensor) -> Tensor:
    def part(x: Tensor) -> Tensor:
        y = m.fc(x)
        COMMON.append(1)
        return y.relu()

    y: Tensor = checkpoint(part, x, use_reentrant=False)
    return y


def _appended_or_not(m: Any, x: Tensor) -> Tensor:
    y = m.fc(x)
    if m.kept is not None and len(x) == 3:
        m.kept.append(y.detach().mean())
    method = m.kept.append
    method({"mean": y.detach().mean()})
    return y


READ: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "its length": _reads_length,
    "its items": _reads_items,
    "before": _reads_first,
    "another list": _of_other_name,
    "a checkpoint": _in_checkpoint,
    "dicts": _appended_or_not,
}


@pytest.mark.parametrize("name", READ)
def test_a_list_that_is_read(name: str) -> None:
    as_in_eager(Calls(READ[name], kept=[]), _steps)


def test_two_modules_of_a_class() -> None:
    module = nn.Sequential(*(Calls(_of_attribute, kept=[]) for _ in range(2)))

    def step(model: Any) -> list[Any]:
        return [_steps(model), [list(part.kept) for part in original(model)]]

    assert_whole(as_in_eager(module, step), captures=1)
