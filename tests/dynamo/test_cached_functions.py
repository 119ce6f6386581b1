"""Methods under `functools.lru_cache`, and `functools.cached_property`."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

from tests.semantics import as_in_eager, assert_whole


class Places(nn.Module):
    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.scale = scale

    @functools.cached_property
    def factor(self) -> float:
        return self.scale * self.fc.in_features

    @functools.cached_property
    def mask(self) -> Tensor:
        return torch.ones(4, 4).tril()[1]

    @functools.lru_cache  # noqa: B019
    def table(self, size: int) -> Tensor:
        return torch.arange(float(size)) * self.scale

    @functools.lru_cache  # noqa: B019
    def share(self, *, of: int) -> float:
        return self.scale / of


def _steps(model: Any) -> list[Tensor]:
    found = []
    for rows in (3, 4, 5, 6):
        found.append(model(torch.randn(rows, 4)))
        found[-1].square().sum().backward()
    return found


class Properties(Places):
    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.fc(x) * self.factor * self.mask
        return y


def test_cached_properties() -> None:
    assert_whole(as_in_eager(Properties(), _steps), captures=2)  # the second finds the values


class Methods(Places):
    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.fc(x) * self.share(of=2) + self.table(4)
        return y


def test_cached_methods() -> None:
    assert_whole(as_in_eager(Methods(), _steps))


def test_cached_methods_of_several_layers() -> None:
    layers = nn.Sequential(*(Methods(scale) for scale in (1.0, 2.0, 3.0)))
    assert_whole(as_in_eager(layers, _steps))


class Changed(Places):
    def forward(self, x: Tensor) -> Tensor:
        self.scale = self.scale + 1.0
        y: Tensor = self.fc(x) + self.table(4)
        return y


def test_a_cached_method_of_a_module_that_forward_changes() -> None:
    as_in_eager(Changed(), _steps)
