"""Numbers at the edges of types and functions give eager's values, gradients and dtypes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ortmodule_py import ORTModule, last_run_report
from tests.semantics import QUIET

_INF, _NAN = float("inf"), float("nan")


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Tensor:
        return self.function(*args)


def _assert_as_eager(function: Callable[..., Tensor], x: Tensor) -> None:
    """The same bits, and of a floating result the same gradient."""
    model = ORTModule(Function(function), QUIET)
    found = []
    for run in (function, model):
        leaf = x.clone().requires_grad_(x.is_floating_point())
        y = run(leaf)
        if y.requires_grad:
            y.sum().backward()
        found.append((y.detach(), leaf.grad))
    assert last_run_report(model)["compiled"]
    for want, got in zip(*found, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x == 0.3,
        lambda x: x * (x >= 0.7),
        lambda x: x % 0.3,
        lambda x: torch.fmod(x, 0.1),
        lambda x: F.hardshrink(x, 0.7),
        lambda x: F.softshrink(x, 0.3),
        lambda x: x.clamp_min(0.7),
        lambda x: x.clamp(-0.3, 0.7),
    ],
)
def test_a_number_is_an_element(function: Callable[..., Tensor], dtype: torch.dtype) -> None:
    _assert_as_eager(function, torch.tensor([0.3, 0.7, 0.1, -0.3, -0.7, 0.8], dtype=dtype))


@pytest.mark.parametrize(
    "function",
    [
        lambda u: u // -2,
        lambda u: u % -100,
        lambda u: u == -1,
        lambda u: u >= -1,
        lambda u: u.clamp(-2, 3),
        lambda u: u * -3 + 300,
    ],
)
def test_small_integers_wrap(function: Callable[..., Tensor]) -> None:
    _assert_as_eager(function, torch.tensor([0, 3, 255], dtype=torch.uint8))


@pytest.mark.parametrize(("bound", "dtype"), [(300, torch.uint8), (-300, torch.int8)])
def test_a_bound_that_the_type_does_not_hold(bound: int, dtype: torch.dtype) -> None:
    x = torch.ones(3, dtype=dtype)
    for run in (lambda x: x.clamp(bound), ORTModule(Function(lambda x: x.clamp(bound)), QUIET)):
        with pytest.raises(RuntimeError, match="overflow"):
            run(x)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.max(),
        lambda x: x.min() + x,
        lambda x: x.amax(1),
        lambda x: x.amin((0, 1), keepdim=True),
    ],
)
def test_gradients_of_extrema(function: Callable[..., Tensor]) -> None:
    for row in ([1.0, _NAN, 3.0], [2.0, 5.0, 5.0], [_NAN, _NAN, 0.0], [_INF, -_INF, _INF]):
        _assert_as_eager(function, torch.tensor([row]))


@pytest.mark.parametrize("loss", [F.smooth_l1_loss, F.huber_loss])
def test_gradients_of_losses_at_infinity(loss: Callable[..., Tensor]) -> None:
    target = torch.tensor([_INF, -_INF, 1.0, 9.0, _NAN])
    x = torch.tensor([1.0, 2.0, 1.25, 1.0, 1.0])
    _assert_as_eager(lambda x: loss(x, target, reduction="none"), x)


def test_rows_of_one_index() -> None:
    index, rows = torch.tensor(1), torch.randn(1, 3)
    for function in (
        lambda x: torch.index_select(x, 0, index),
        lambda x: x.index_add(0, index, rows),
        lambda x: x.index_copy(0, index, rows),
    ):
        _assert_as_eager(function, torch.randn(4, 3))


def test_padding_that_becomes_cropping() -> None:
    model = ORTModule(Function(lambda x: F.pad(x, (0, 6 - x.shape[1]))), QUIET)
    for length in (5, 4, 8, 6, 11):
        x = torch.randn(3, length, requires_grad=True)
        y = model(x)
        torch.testing.assert_close(y, F.pad(x, (0, 6 - length)))
        (dx,) = torch.autograd.grad(y.square().sum(), x)
        want = 2 * x.detach() * (torch.arange(length) < 6)
        torch.testing.assert_close(dx, want)


class Bag(nn.Module):
    """Rows of equal length, whose offsets are a range with a step that changes."""

    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(6, 3)

    def forward(self, index: Tensor) -> Tensor:
        return self.bag(index)


def test_bags_of_rows() -> None:
    bag = Bag()
    model = ORTModule(bag, QUIET)
    for shape in ((4, 4), (3, 5), (2, 1)):
        index = torch.randint(6, shape)
        torch.testing.assert_close(model(index), bag(index))
        model.zero_grad()
        model(index).sum().backward()
        got = bag.bag.weight.grad
        bag.zero_grad()
        bag(index).sum().backward()
        torch.testing.assert_close(got, bag.bag.weight.grad)


def test_exponentials_far_below_one() -> None:
    """A logarithm written around them makes them count."""
    x = torch.tensor([[-87.0, -88.0], [-100.0, -103.0], [-104.5, 3.0], [89.0, 0.0]])
    for function in (torch.exp, lambda x: torch.exp(x).sum(-1).log()):
        model = ORTModule(Function(function), QUIET)
        leaves = [x.clone().requires_grad_() for _ in "oe"]
        ours, eager = model(leaves[0]), function(leaves[1])
        # The least of the denormal numbers have a few bits.
        torch.testing.assert_close(ours, eager, rtol=1e-6, atol=3e-45)
        for y in (ours, eager):
            y[:3].sum().backward()
        torch.testing.assert_close(
            leaves[0].grad, leaves[1].grad, rtol=2e-2, atol=3e-45, equal_nan=True
        )


def test_gelu_far_from_zero() -> None:
    x = torch.tensor([1e36, -1e36, 200.0, -200.0, 1e10])
    model = ORTModule(Function(F.gelu), QUIET)
    leaf = x.clone().requires_grad_()
    model(leaf).sum().backward()
    assert leaf.grad is not None and leaf.grad.tolist() == [1.0, 0.0, 1.0, 0.0, 1.0]


@pytest.mark.parametrize("target", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8])
@pytest.mark.parametrize("source", [torch.float32, torch.float64])
def test_integers_of_what_they_do_not_hold(source: torch.dtype, target: torch.dtype) -> None:
    numbers = [3e9, -3e9, 1e20, _INF, -_INF, _NAN, 70000.5, -300.7, 200.0]
    x = torch.tensor(numbers * 9).to(source)
    _assert_as_eager(lambda x: x.to(target), x)


_EDGES = [0.0, -0.0, 1.0, -1.0, -2.0, 1e-40, -1e-40, 1e-30, 88.5, -88.5, 104.0, -104.0, 3e38,
          _INF, -_INF, _NAN]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "function",
    [
        torch.log,
        torch.log1p,
        torch.expm1,
        torch.tanh,
        torch.sin,
        torch.cos,
        F.elu,
        F.softplus,
        F.mish,
        F.logsigmoid,
        lambda x: x**1.5,
        lambda x: x**7,
        lambda x: x**-3,
        lambda x: 0.3**x,
        lambda x: (-2.0) ** x,
    ],
)
def test_edges_of_functions(function: Callable[..., Tensor], dtype: torch.dtype) -> None:
    """Zeros with eager's signs, infinities and NaN where eager has them."""
    x = torch.tensor(_EDGES * 3).to(dtype)
    got, want = ORTModule(Function(function), QUIET)(x), function(x)
    # Results of exponentials that are below the normal numbers may be zero.
    tiny = 2 * torch.finfo(torch.float32).tiny
    rtol = 2 * torch.finfo(dtype).eps
    torch.testing.assert_close(got, want, rtol=rtol, atol=104 * tiny, equal_nan=True)
    zeros = (want == 0) & (x == 0)
    assert torch.equal(got[zeros].signbit(), want[zeros].signbit())


class BehindPointwise(nn.Module):
    """A layer on an image that is laid out by the engine, read by a row-major consumer."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        y: Tensor = self.layer(x.tanh()).flatten(0, -2)
        return (y.sigmoid() * weight[: len(y), : y.shape[1]]).sum()


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm2d(3),
        nn.BatchNorm2d(3).eval(),
        nn.BatchNorm3d(3),
        nn.GroupNorm(3, 3),
        nn.Conv2d(3, 3, 1),
        nn.Conv2d(3, 3, (1, 3), padding=(0, 1)),
        nn.ConvTranspose2d(3, 3, (1, 2)),
        nn.AvgPool2d((1, 2), padding=(0, 1)),
        nn.MaxPool2d((1, 2), padding=(0, 1)),
        nn.Upsample(scale_factor=2),
        nn.Upsample(scale_factor=2, mode="bilinear"),
        nn.PReLU(3),
        nn.Dropout2d(0.0),
    ],
    ids=lambda layer: type(layer).__name__,
)
@pytest.mark.parametrize("sizes", [(7, 1, 6), (2, 6, 1), (3, 1, 1), (1, 1, 6)])
def test_channels_last_images_of_height_or_width_one(
    layer: nn.Module, sizes: tuple[int, int, int]
) -> None:
    batch, height, width = sizes
    is_volume = isinstance(layer, nn.BatchNorm3d)
    shape = (batch, 3, height, width, 1) if is_volume else (batch, 3, height, width)
    last = torch.channels_last_3d if is_volume else torch.channels_last
    eager = BehindPointwise(copy.deepcopy(layer)).double()
    model = ORTModule(copy.deepcopy(eager), QUIET)
    x = torch.randn(shape, dtype=torch.float64).contiguous(memory_format=last)
    weight = torch.randn(200, 40, dtype=torch.float64)
    results = []
    for runner in (model, eager):
        leaf = x.clone().requires_grad_()
        y = runner(leaf, weight)
        y.backward()
        results.append([y, leaf.grad, *(p.grad for p in runner.parameters())])
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want)
