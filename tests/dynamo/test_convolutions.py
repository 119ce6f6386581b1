"""Convolutions of batches of fewer and of more than 16 images, for which torch may take other libraries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.semantics import as_in_eager, assert_whole

LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "conv1d": (lambda: nn.Conv1d(3, 4, 3), (3, 9)),
    "pointwise": (lambda: nn.Conv2d(3, 4, 1), (3, 5, 5)),
    "by channel": (lambda: nn.Conv2d(4, 4, 3, groups=4, padding=1), (4, 5, 5)),
    "conv3d": (lambda: nn.Conv3d(2, 3, 2), (2, 4, 4, 4)),
    "transposed": (lambda: nn.ConvTranspose2d(3, 4, 2, stride=2), (3, 5, 5)),
    "network": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1), nn.Flatten()
        ),
        (3, 6, 6),
    ),
}


def _steps(size: tuple[int, ...], format: torch.memory_format) -> Callable[[Any], list[Tensor]]:
    def step(model: Any) -> list[Tensor]:
        results = []
        for rows in (20, 4, 17, 15, 3):
            results.append(model(torch.randn(rows, *size).to(memory_format=format)))
            results[-1].square().mean().backward()
        return results

    return step


@pytest.mark.parametrize("name", LAYERS)
def test_batches_of_all_sizes_share_a_capture(name: str) -> None:
    make, size = LAYERS[name]
    assert_whole(as_in_eager(make(), _steps(size, torch.contiguous_format)), captures=1)


class _OfSteps(nn.Conv1d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.mT).mT


def test_sequences_of_vectors() -> None:
    step = _steps((9, 3), torch.contiguous_format)
    assert_whole(as_in_eager(_OfSteps(3, 4, 3), step), captures=1)


@pytest.mark.parametrize("of_weights", [False, True])
def test_channels_last(of_weights: bool) -> None:
    """Results lie as in eager PyTorch."""
    layer = nn.Conv2d(3, 4, 3)
    if of_weights:
        layer = layer.to(memory_format=torch.channels_last)
    format = torch.contiguous_format if of_weights else torch.channels_last
    as_in_eager(layer, _steps((3, 5, 5), format))
