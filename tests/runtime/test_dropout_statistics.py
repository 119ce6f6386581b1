"""The numbers of dropout: how many are kept, and whether masks know of each other."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ortmodule_py import ORTModule
from tests.semantics import QUIET

SIZE = 200_000


class Layers(nn.Module):
    """Dropouts that see ones, so that what comes out is the mask."""

    def __init__(self, ratios: list[float]) -> None:
        super().__init__()
        self.drops = nn.ModuleList(nn.Dropout(ratio) for ratio in ratios)
        self.one = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> list[Tensor]:
        return [drop(x * self.one) for drop in self.drops]


def _masks(model: ORTModule) -> list[Tensor]:
    return [(y != 0).double() for y in model(torch.ones(SIZE // 400, 400))]


def _correlation(a: Tensor, b: Tensor) -> float:
    """Of two masks; its standard deviation is 1 / sqrt(SIZE) where they are independent."""
    a, b = a.flatten() - a.mean(), b.flatten() - b.mean()
    return float((a @ b) / (a.norm() * b.norm()))


def test_keep_rate() -> None:
    torch.manual_seed(11)
    ratios = [0.01, 0.1, 0.3, 0.5, 0.9]
    model = ORTModule(Layers(ratios), QUIET)
    for _ in range(3):
        for ratio, mask in zip(ratios, _masks(model), strict=True):
            deviation = math.sqrt(ratio * (1 - ratio) / SIZE)
            assert abs(float(mask.mean()) - (1 - ratio)) < 4.5 * deviation
            # Along rows and columns, too.
            for dim in (0, 1):
                means = mask.mean(dim)
                spread = math.sqrt(ratio * (1 - ratio) / mask.shape[dim])
                assert abs(float(means.std()) / spread - 1) < 0.2


def test_masks_are_independent_of_each_other() -> None:
    """Over layers, steps, processes with other seeds, and neighbours within a mask."""
    limit = 4.5 / math.sqrt(SIZE)
    masks: list[Tensor] = []
    for seed in (0, 1):  # as two ranks have
        torch.manual_seed(seed)
        model = ORTModule(Layers([0.5, 0.5, 0.5]), QUIET)
        for _ in range(3):
            masks += _masks(model)
    for i, a in enumerate(masks):
        for b in masks[:i]:
            assert abs(_correlation(a, b)) < limit
    for shift in (1, 2, 3, 4, 5, 8, 400):
        flat = masks[0].flatten()
        assert abs(_correlation(flat[:-shift], flat[shift:])) < limit


def test_the_seed_decides() -> None:
    model = ORTModule(Layers([0.5]), QUIET)
    found = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        found.append(_masks(model)[0])
    assert torch.equal(found[0], found[1])
    assert abs(_correlation(found[0], found[2])) < 4.5 / math.sqrt(SIZE)
