"""Outputs have eager's strides where the functional form of an operator would give others."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ortmodule_py import ORTModule, last_run_report


class FilledInPlace(nn.Module):
    """`masked_fill_` keeps the layout of its tensor, `masked_fill` makes a row-major one."""

    def forward(self, x: Tensor) -> Tensor:
        y = x * 2
        y.masked_fill_(y.detach() > 1, 0.5)
        return y[..., :2]


def test_in_place_change_keeps_the_layout() -> None:
    x = torch.randn(4, 3, 5).transpose(0, -1)
    want = FilledInPlace()(x)
    got = ORTModule(FilledInPlace())(x)
    assert got.stride() == want.stride()
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_volumes_of_both_layouts(dtype: torch.dtype) -> None:
    """Fake tensors have row-major results once the batch is a symbol."""
    eager = nn.Sequential(nn.Conv3d(3, 4, 3), nn.Conv3d(4, 4, 2, bias=False)).to(dtype)
    model = ORTModule(copy.deepcopy(eager))
    for batch, layout in ((2, torch.contiguous_format), (3, torch.channels_last_3d)):
        x = torch.randn(batch, 3, 6, 7, 8).to(dtype).contiguous(memory_format=layout)
        want, got = eager(x), model(x)
        assert got.stride() == want.stride()
        torch.testing.assert_close(got, want, rtol=1e-2, atol=1e-2)


class DropsNothing(nn.Module):
    def forward(self, x: Tensor) -> list[Tensor]:
        y = F.dropout(x, 0.0)
        return [y, y.flatten(0, 1), F.dropout(x, 0.5, training=False).mT]


def test_dropout_that_draws_nothing_is_its_argument() -> None:
    x = torch.randn(3, 4, 10)[..., ::2]
    want = DropsNothing()(x)
    model = ORTModule(DropsNothing())
    for out, expected in zip(model(x), want, strict=True):
        assert out.stride() == expected.stride() and torch.equal(out, expected)
    assert last_run_report(model)["compiled"]


class ChangesWhatItDropped(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        v = x * 2
        F.dropout(v, 0.5, training=False).add_(1)
        return v


def test_change_of_what_a_dropout_passed_on() -> None:
    x = torch.randn(3, 4)
    assert torch.equal(ORTModule(ChangesWhatItDropped())(x), 2 * x + 1)


class FakedWrongly(nn.Module):
    """For these operators torch's fake tensors have other strides than eager's results."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(4)
        self.instance = nn.InstanceNorm2d(4)

    def forward(self, x: Tensor) -> list[Tensor]:
        power = torch.pow(2.0, x)
        inner = checkpoint(lambda t: 2.0 ** t.tanh(), x, use_reentrant=False)
        normed = [self.norm(x), self.instance(x).sin()]
        pooled, places = F.max_pool2d(x, 2, return_indices=True)
        back = F.max_unpool2d(pooled, places, 2, output_size=x.shape[2:])
        return [power, power + 1, x.roll(1, 1), torch.roll(x, 2, 2) * 2, inner, back, *normed]


def test_operators_that_fake_tensors_get_wrong() -> None:
    for x in (
        torch.randn(2, 4, 3, 5).to(memory_format=torch.channels_last),
        torch.randn(5, 3, 4, 2).permute(3, 2, 1, 0),
        torch.randn(2, 4, 3, 5),
    ):
        want = FakedWrongly()(x)
        model = ORTModule(FakedWrongly())
        for out, expected in zip(model(x), want, strict=True):
            assert out.stride() == expected.stride()
            torch.testing.assert_close(out, expected)
        assert last_run_report(model)["compiled"]


class Enlarges(nn.Module):
    def __init__(self, mode: str) -> None:
        super().__init__()
        self.mode = mode

    def forward(self, x: Tensor) -> Tensor:
        return F.interpolate(x * 2, scale_factor=2, mode=self.mode).relu()


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "linear"])
def test_interpolation_of_a_transposed_sequence(mode: str) -> None:
    x = torch.randn(2, 7, 4).transpose(0, 1)
    want = Enlarges(mode)(x)
    got = ORTModule(Enlarges(mode))(x)
    assert got.stride() == want.stride()
    torch.testing.assert_close(got, want)


def _steps(value: Tensor) -> list[int]:
    """The strides that tell where elements lie."""
    return [stride for stride, size in zip(value.stride(), value.shape, strict=True) if size != 1]


@pytest.mark.parametrize("shape", [(1, 3, 1, 5), (2, 3, 1, 5), (1, 1, 1, 5), (2, 1, 3, 1)])
def test_batch_norm_where_dimensions_of_size_1_leave_the_format_open(
    shape: tuple[int, ...],
) -> None:
    for order in ((0, 1, 2, 3), (0, 2, 3, 1), (3, 0, 2, 1), (1, 3, 2, 0)):
        strides, step = [0] * 4, 1
        for dim in reversed(order):
            strides[dim] = 1 if shape[dim] == 1 else step
            step *= shape[dim]
        x = torch.empty_strided(shape, strides).normal_()
        norm = nn.Sequential(nn.BatchNorm2d(shape[1]), nn.ReLU())
        want = copy.deepcopy(norm)(x)
        got = ORTModule(norm)(x)
        assert _steps(got) == _steps(want), (shape, strides)
        torch.testing.assert_close(got, want)


class Pools(nn.Module):
    """Where no gradient is needed eager has another kernel, whose result is row-major."""

    def forward(self, x: Tensor, scale: Tensor) -> list[Tensor]:
        y = x.flatten(2, 3)
        with torch.no_grad():
            apart = F.max_pool1d(y * scale, 2)
        return [F.max_pool1d(y, 2), F.max_pool1d(y * scale, 3), apart, nn.MaxPool1d(2)(x[0].mT[0])]


@pytest.mark.parametrize("needs_gradient", [False, True])
@pytest.mark.parametrize("grad_mode", [False, True])
def test_max_pool1d_of_channels_last(needs_gradient: bool, grad_mode: bool) -> None:
    ours = ORTModule(Pools())
    for batch in (3, 5):
        x = torch.randn(batch, 2, 5, 6).to(memory_format=torch.channels_last)
        scale = torch.randn((), requires_grad=needs_gradient)
        with torch.set_grad_enabled(grad_mode):
            for got, want in zip(ours(x, scale), Pools()(x, scale), strict=True):
                assert got.stride() == want.stride()
                torch.testing.assert_close(got, want)
