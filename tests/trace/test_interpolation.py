"""Interpolation runs as torch's own kernels do it, whole, in every mode and memory format."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ortmodule_py import ORTModule, last_run_report

MODES = [
    ("nearest", 1),
    ("nearest-exact", 1),
    ("linear", 1),
    ("nearest", 2),
    ("nearest-exact", 2),
    ("bilinear", 2),
    ("bicubic", 2),
    ("nearest", 3),
    ("trilinear", 3),
]
SIZES: list[dict[str, Any]] = [
    {"scale_factor": 2},
    {"scale_factor": 1.7},
    {"size": 7},
    {"scale_factor": 0.6, "recompute_scale_factor": True},
]
Options = list[dict[str, Any]]
QUICK = [("nearest-exact", 1), ("linear", 1), ("bilinear", 2)]


@pytest.fixture(autouse=True)
def _no_captures_of_other_cases() -> None:
    torch._dynamo.reset()


class Enlarged(nn.Module):
    """A layer's result, enlarged in each of these ways."""

    def __init__(self, rank: int, ways: Options) -> None:
        super().__init__()
        self.conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[rank - 1](3, 4, 3, padding=1)
        self.ways = ways

    def forward(self, x: Tensor) -> list[Tensor]:
        y = self.conv(x)
        return [F.interpolate(y, **way).relu() for way in self.ways]


def _assert_as_eager(module: nn.Module, model: ORTModule, x: Tensor) -> None:
    twin = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    x.requires_grad_()
    module.zero_grad()
    model.zero_grad()
    want, got = module(x), model(twin)
    grads = [torch.randn_like(y) for y in want]
    for mine, theirs in zip(got, want, strict=True):
        assert mine.stride() == theirs.stride()
        torch.testing.assert_close(mine, theirs)
    torch.autograd.backward(want, grads)
    torch.autograd.backward(got, grads)
    torch.testing.assert_close(twin.grad, x.grad)
    for ours, eager in zip(model.parameters(), module.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, eager.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("mode", "rank"),
    [pytest.param(*way, marks=() if way in QUICK else pytest.mark.slow) for way in MODES],
)
def test_every_mode_and_size(mode: str, rank: int) -> None:
    """Whole: its parts would gather element by element, several times slower."""
    torch.manual_seed(0)
    corners: Options = [{}]
    if mode.endswith(("linear", "cubic")):
        corners = [{}, {"align_corners": True}]
    module = Enlarged(rank, [{"mode": mode, **size, **more} for size in SIZES for more in corners])
    model = ORTModule(copy.deepcopy(module))
    for batch in (2, 3):
        x = torch.randn(batch, 3, *[8 + batch] * rank)
        _assert_as_eager(module, model, x)
        if rank == 2:
            _assert_as_eager(module, model, x.detach().to(memory_format=torch.channels_last))
    assert last_run_report(model)["compiled"]
    for piece in model._compiler.pieces:
        text = piece.compiled.text("exported")
        assert text.count("= Resize<") == len(module.ways) and "Gather" not in text, text


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_antialias(mode: str) -> None:
    torch.manual_seed(0)
    module = Enlarged(2, [{"mode": mode, "size": 5, "antialias": True}])
    _assert_as_eager(module, ORTModule(copy.deepcopy(module)), torch.randn(2, 3, 9, 9))


class SpatialTransformer(nn.Module):
    """Bends its image by an affine map that it computes (Jaderberg et al., 2015)."""

    def __init__(self) -> None:
        super().__init__()
        self.place = nn.Linear(3 * 6 * 5, 6)
        nn.init.normal_(self.place.weight, std=0.02)

    def forward(self, x: Tensor) -> list[Tensor]:
        theta = self.place(x.flatten(1)).view(-1, 2, 3) + torch.eye(2, 3)
        return [F.grid_sample(x, F.affine_grid(theta, x.shape, align_corners=False))]


@pytest.mark.filterwarnings("ignore:Default grid_sample")
def test_affine_grid_of_changing_sizes() -> None:
    """Its backward in C++ takes no symbolic sizes."""
    module = SpatialTransformer()
    model = ORTModule(copy.deepcopy(module))
    for batch in (5, 4, 1):  # torch's fake grid_sample compares the batch with the channels
        _assert_as_eager(module, model, torch.randn(batch, 3, 6, 5))
    report = last_run_report(model)
    assert report["compiled"] and report["captures"] <= 2
