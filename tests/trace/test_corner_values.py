"""Numbers at the edges of types and functions give eager's values, gradients and dtypes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
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


class Functions(nn.Module):
    """Each function on an argument of its own."""

    def __init__(self, functions: Sequence[Callable[..., Tensor]]) -> None:
        super().__init__()
        self.functions = functions

    def forward(self, *args: Tensor) -> list[Tensor]:
        return [function(x) for function, x in zip(self.functions, args, strict=True)]


def _assert_as_eager(functions: Sequence[Callable[..., Tensor]], *values: Tensor) -> None:
    """Of each function of each value the same bits, and of a floating result the same gradient."""
    calls = [function for function in functions for _ in values]
    model = ORTModule(Functions(calls), QUIET)
    found = []
    for run in (Functions(calls), model):
        leaves = [
            x.clone().requires_grad_(x.is_floating_point()) for _ in functions for x in values
        ]
        results = run(*leaves)
        if any(y.requires_grad for y in results):
            sum(y.sum() for y in results if y.requires_grad).backward()
        found.append([(y.detach(), x.grad) for y, x in zip(results, leaves, strict=True)])
    assert last_run_report(model)["compiled"]
    for i, (want, got) in enumerate(zip(*found, strict=True)):
        torch.testing.assert_close(
            got, want, rtol=0, atol=0, equal_nan=True, msg=lambda text, i=i: f"call {i}: {text}"
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_number_is_an_element(dtype: torch.dtype) -> None:
    functions = (
        lambda x: x == 0.3,
        lambda x: x * (x >= 0.7),
        lambda x: x % 0.3,
        lambda x: torch.fmod(x, 0.1),
        lambda x: F.hardshrink(x, 0.7),
        lambda x: F.softshrink(x, 0.3),
        lambda x: x.clamp_min(0.7),
        lambda x: x.clamp(-0.3, 0.7),
    )
    _assert_as_eager(functions, torch.tensor([0.3, 0.7, 0.1, -0.3, -0.7, 0.8], dtype=dtype))


def test_small_integers_wrap() -> None:
    functions = (
        lambda u: u // -2,
        lambda u: u % -100,
        lambda u: u == -1,
        lambda u: u >= -1,
        lambda u: u.clamp(-2, 3),
        lambda u: u * -3 + 300,
    )
    _assert_as_eager(functions, torch.tensor([0, 3, 255], dtype=torch.uint8))


@pytest.mark.parametrize(("bound", "dtype"), [(300, torch.uint8), (-300, torch.int8)])
def test_a_bound_that_the_type_does_not_hold(bound: int, dtype: torch.dtype) -> None:
    x = torch.ones(3, dtype=dtype)
    for run in (lambda x: x.clamp(bound), ORTModule(Function(lambda x: x.clamp(bound)), QUIET)):
        with pytest.raises(RuntimeError, match="overflow"):
            run(x)


def test_gradients_of_extrema() -> None:
    functions = (
        lambda x: x.max(),
        lambda x: x.min() + x,
        lambda x: x.amax(1),
        lambda x: x.amin((0, 1), keepdim=True),
    )
    rows = ([1.0, _NAN, 3.0], [2.0, 5.0, 5.0], [_NAN, _NAN, 0.0], [_INF, -_INF, _INF])
    _assert_as_eager(functions, *(torch.tensor([row]) for row in rows))


def test_gradients_of_losses_at_infinity() -> None:
    target = torch.tensor([_INF, -_INF, 1.0, 9.0, _NAN])
    functions = (
        lambda x: F.smooth_l1_loss(x, target, reduction="none"),
        lambda x: F.huber_loss(x, target, reduction="none"),
    )
    _assert_as_eager(functions, torch.tensor([1.0, 2.0, 1.25, 1.0, 1.0]))


def test_rows_of_one_index() -> None:
    index, rows = torch.tensor(1), torch.randn(1, 3)
    functions = (
        lambda x: torch.index_select(x, 0, index),
        lambda x: x.index_add(0, index, rows),
        lambda x: x.index_copy(0, index, rows),
    )
    _assert_as_eager(functions, torch.randn(4, 3))


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


@pytest.mark.parametrize("source", [torch.float32, torch.float64])
def test_integers_of_what_they_do_not_hold(source: torch.dtype) -> None:
    numbers = [3e9, -3e9, 1e20, _INF, -_INF, _NAN, 70000.5, -300.7, 200.0]
    targets = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
    functions = [lambda x, target=target: x.to(target) for target in targets]
    _assert_as_eager(functions, torch.tensor(numbers * 9).to(source))


_EDGES = [0.0, -0.0, 1.0, -1.0, -2.0, 1e-40, -1e-40, 1e-30, 88.5, -88.5, 104.0, -104.0, 3e38,
          _INF, -_INF, _NAN]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_edges_of_functions(dtype: torch.dtype) -> None:
    """Zeros with eager's signs, infinities and NaN where eager has them."""
    functions = (
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
    )
    x = torch.tensor(_EDGES * 3).to(dtype)
    values = [x.clone() for _ in functions]
    ours, eager = ORTModule(Functions(functions), QUIET)(*values), Functions(functions)(*values)
    # Results of exponentials that are below the normal numbers may be zero.
    tiny = 2 * torch.finfo(torch.float32).tiny
    rtol = 2 * torch.finfo(dtype).eps
    for i, (got, want) in enumerate(zip(ours, eager, strict=True)):
        torch.testing.assert_close(
            got,
            want,
            rtol=rtol,
            atol=104 * tiny,
            equal_nan=True,
            msg=lambda text, i=i: f"function {i}: {text}",
        )
        zeros = (want == 0) & (x == 0)
        assert torch.equal(got[zeros].signbit(), want[zeros].signbit()), i


class BehindPointwise(nn.Module):
    """Layers, each on an image that is laid out by the engine, and read by a row-major consumer."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor, volume: Tensor, weight: Tensor) -> list[Tensor]:
        results = []
        for i, layer in enumerate(self.layers, 1):
            image = volume if isinstance(layer, nn.BatchNorm3d) else x
            y: Tensor = layer((image * i).tanh()).flatten(0, -2)
            results.append((y.sigmoid() * weight[: len(y), : y.shape[1]]).sum())
        return results


def _layers() -> list[nn.Module]:
    return [
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
    ]


@pytest.mark.parametrize(
    ("sizes", "part"), [((7, 1, 6), 0), ((2, 6, 1), 1), ((3, 1, 1), 1), ((1, 1, 6), 0)]
)
def test_channels_last_images_of_height_or_width_one(
    sizes: tuple[int, int, int], part: int
) -> None:
    batch, height, width = sizes
    torch.manual_seed(0)
    eager = BehindPointwise(_layers()[part::2]).double()
    model = ORTModule(copy.deepcopy(eager), QUIET)
    image = torch.randn(batch, 3, height, width, dtype=torch.float64)
    x = image.contiguous(memory_format=torch.channels_last)
    volume = image[..., None].contiguous(memory_format=torch.channels_last_3d)
    weight = torch.randn(200, 40, dtype=torch.float64)
    results = []
    for runner in (model, eager):
        leaves = [x.clone().requires_grad_(), volume.clone().requires_grad_()]
        found = runner(*leaves, weight)
        sum(found).backward()
        results.append([*found, *(v.grad for v in leaves), *(p.grad for p in runner.parameters())])
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want)
