"""Methods of classes that are replaced between calls, as a patch, a notebook or autoreload does."""

from __future__ import annotations

import unittest.mock
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.semantics import as_in_eager, assert_compiled


class _Scale:
    def of(self, x: Tensor) -> Tensor:
        return x * 3


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.fc(self.before(x))
        return y

    def before(self, x: Tensor) -> Tensor:
        return x + 1


class _Heir(_Block):
    pass


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = _Block()
        self.second = _Heir()
        self.act = nn.ReLU()
        self.scale = _Scale()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.act(self.second(self.first(x))))
        return y

    def last(self, x: Tensor) -> Tensor:
        return self.scale.of(x)


def _outputs(model: Any, count: int = 4) -> list[Tensor]:
    # Dynamo skips some guards from the second call on.
    return [model(torch.ones(2, 4)) for _ in range(count)]


@pytest.mark.parametrize(
    ("cls", "name"),
    [
        (_Model, "last"),
        (_Block, "forward"),
        (_Heir, "forward"),  # where there was none before
        (nn.ReLU, "forward"),
        (_Scale, "of"),
    ],
)
def test_a_replaced_method_is_noticed_and_its_return_too(cls: type, name: str) -> None:
    def step(model: Any) -> list[Tensor]:
        found = _outputs(model)
        with unittest.mock.patch.object(cls, name, lambda self, x: (x * 7).sin()):
            found += _outputs(model)
        return found + _outputs(model)

    as_in_eager(_Model(), step)


def _times(factor: float) -> Callable[[Any, Tensor], Tensor]:
    return lambda self, x: x * factor


def test_a_method_made_again_with_other_values_is_noticed() -> None:
    def step(model: Any) -> list[Tensor]:
        found = []
        for factor in (1.0, 2.0, 5.0):
            with unittest.mock.patch.object(_Block, "before", _times(factor)):
                found += _outputs(model, 2)
        return found

    as_in_eager(_Model(), step)


def test_a_replaced_method_that_was_there_before_needs_no_capture() -> None:
    def step(model: Any) -> list[Tensor]:
        found = _outputs(model)
        doubled = _times(2.0)
        for _ in range(3):
            with unittest.mock.patch.object(_Block, "before", doubled):
                found += _outputs(model)
            found += _outputs(model)
        return found

    assert_compiled(as_in_eager(_Model(), step), captures=3)
