"""Batch norm by the CUDA kernels, compiled for the host: layouts, types, statistics, Relu behind it."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from ortmodule_py import ORTModule
from ortmodule_py.report.plan_table import training_piece
from tests.devices.emulated import emulated

_LAYERS = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
_SHAPES = (
    (64, 40),
    (700, 130),
    (6, 7),
    (3, 8, 10),
    (3, 5, 7, 3),
    (17, 64, 9, 9),
    (2, 24, 4, 4),
    (2, 8, 3, 4, 6),
    # Parts of channels.
    (2000, 24),
    (40, 3, 30, 30),
    (30, 4, 24, 26),
)


def _layer(shape: tuple[int, ...], kind: str) -> nn.Module:
    layer = _LAYERS[len(shape)](shape[1])
    nn.init.normal_(layer.weight)
    nn.init.normal_(layer.bias)
    return layer.to({"float64": torch.float64, "all bfloat16": torch.bfloat16}.get(kind))


def _step(layer: nn.Module, x: Tensor, weights: Tensor) -> list[Tensor]:
    """The result, all gradients, and the statistics."""
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    y = layer(x)
    y.backward(weights.to(y.dtype))
    assert x.grad is not None and y.stride() == x.stride()
    gradients = [p.grad for p in layer.parameters() if p.grad is not None]
    return [y.detach(), x.grad, *gradients, *layer.buffers()]


def _errors(found: list[Tensor], exact: list[Tensor]) -> list[float]:
    return [
        float((a.double() - b).abs().max() / b.abs().max().clamp_min(1e-30))
        for a, b in zip(found, exact, strict=True)
    ]


@emulated
@pytest.mark.parametrize("kind", ["float32", "float64", "bfloat16", "float16", "all bfloat16"])
@pytest.mark.parametrize("last", [False, True], ids=["row-major", "channels-last"])
def test_is_as_near_to_float64_as_eager(
    monkeypatch: pytest.MonkeyPatch, kind: str, last: bool
) -> None:
    monkeypatch.setenv("ORTMODULE_CUDA_EMULATION", "1")
    torch.manual_seed(0)
    dtype = getattr(torch, kind.split()[-1])
    for shape in _SHAPES:
        if last and len(shape) != 4:
            continue
        x = (torch.randn(shape) * 2 + 5).to(dtype)
        if last:
            x = x.contiguous(memory_format=torch.channels_last)
        weights = torch.randn_like(x)
        eager = _layer(shape, kind)
        exact = _step(copy.deepcopy(eager).double(), x.double(), weights.double())
        model = ORTModule(copy.deepcopy(eager))
        found = _errors(_step(model, x, weights), exact)
        allowed = _errors(_step(eager, x, weights), exact)
        least = 1e-13 if kind == "float64" else 1e-6
        assert all(a <= 3 * b + least for a, b in zip(found, allowed, strict=True)), (shape, found)
        text = training_piece(model._compiler).text("plan")
        assert "batch_norm_cuda" in text and "batch_norm_grad_cuda" in text


@emulated
@pytest.mark.parametrize(("channels", "pixels"), [(8, 12), (2, 40)], ids=["whole", "in parts"])
def test_an_outlier_first_does_not_spoil_the_variance(
    monkeypatch: pytest.MonkeyPatch, channels: int, pixels: int
) -> None:
    """Differences are taken from the first element that each thread sees."""
    monkeypatch.setenv("ORTMODULE_CUDA_EMULATION", "1")
    torch.manual_seed(0)
    x = torch.randn(32, channels, pixels, pixels) + 100
    x[0, :, 0, 0] = 1000
    layer = nn.BatchNorm2d(channels)
    exact = copy.deepcopy(layer).double()(x.double())
    assert float((ORTModule(layer)(x) - exact).detach().abs().max()) < 1e-4 * float(
        exact.abs().max()
    )


@emulated
def test_buffers_are_written_back_in_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_CUDA_EMULATION", "1")
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(3):
        layers += [nn.Linear(12, 12), nn.BatchNorm1d(12), nn.ReLU()]
    eager = nn.Sequential(*copy.deepcopy(layers))
    model = ORTModule(nn.Sequential(*layers))
    for _ in range(3):
        x = torch.randn(16, 12)
        model(x).sum().backward()
        eager(x).sum().backward()
    for (name, a), b in zip(model.named_buffers(), eager.buffers(), strict=True):
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-6), name
    text = training_piece(model._compiler).text("plan")
    (line,) = [line for line in text.splitlines() if "write_back_cuda" in line]
    assert line.count("num_batches_tracked@") == 3


class Residual(nn.Module):
    """Two blocks: one whose shortcut has a norm, too, and one that ends with a sum alone."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(channels, channels, 1) for _ in range(5))
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(5))
        for parameter in self.parameters():
            nn.init.normal_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        def at(i: int, x: Tensor) -> Tensor:
            return self.norms[i](self.convs[i](x))

        x = torch.relu(at(1, torch.relu(at(0, x))) + at(2, x))
        return torch.relu(x + at(4, torch.relu(at(3, x)))).mean((2, 3))


def _residual_step(
    block: Residual, x: Tensor, cast: torch.dtype | None
) -> tuple[str, list[Tensor]]:
    """The plan; the result, all gradients, and the statistics."""
    model = ORTModule(copy.deepcopy(block))
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    with torch.autocast("cpu", cast or torch.bfloat16, enabled=cast is not None):
        y = model(x)
    y.float().square().mean().backward()
    assert x.grad is not None
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    text = training_piece(model._compiler).text("plan")
    return text, [y.detach(), x.grad, *gradients, *model.buffers()]


@emulated
@pytest.mark.parametrize(
    ("cast", "last", "channels", "pixels"),
    [
        (None, False, 8, 9),
        (None, True, 7, 5),
        (torch.bfloat16, True, 8, 9),
        (torch.float16, False, 7, 5),
        (None, False, 2, 40),
        (torch.bfloat16, True, 2, 40),
    ],
)
def test_a_relu_behind_a_norm_changes_no_bit(
    monkeypatch: pytest.MonkeyPatch,
    cast: torch.dtype | None,
    last: bool,
    channels: int,
    pixels: int,
) -> None:
    """Of two steps, and of values that are computed again."""
    monkeypatch.setenv("ORTMODULE_CUDA_EMULATION", "1")
    torch.manual_seed(0)
    block = Residual(channels)
    x = torch.randn(3, channels, pixels, pixels)
    x = x.contiguous(memory_format=torch.channels_last) if last else x
    plan, found = _residual_step(block, x, cast)
    counts = {
        name: plan.count(f" {name}_cuda ")
        for name in (
            "batch_norm",
            "batch_norm_relu",
            "batch_norm_add_relu",
            "batch_norm_grad",
            "batch_norm_relu_grad",
            "batch_norm_add_relu_grad",
        )
    }
    assert counts == {
        "batch_norm": 1,
        "batch_norm_relu": 2,
        "batch_norm_add_relu": 2,
        "batch_norm_grad": 2,
        "batch_norm_relu_grad": 2,
        "batch_norm_add_relu_grad": 1,
    }
    assert "[Add ReluGrad]" not in plan
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_LEVEL", "1")
    _, recomputed = _residual_step(block, x, cast)
    assert all(torch.equal(*pair) for pair in zip(found, recomputed, strict=True))
    monkeypatch.delenv("ORTMODULE_MEMORY_OPT_LEVEL")
    monkeypatch.setenv("ORTMODULE_DISABLE_PASSES", "fuse_batch_norm_relu")
    plan, apart = _residual_step(block, x, cast)
    assert "relu_cuda" not in plan and "relu_grad_cuda" not in plan
    assert all(torch.equal(*pair) for pair in zip(found, apart, strict=True))


@emulated
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_relu_and_norm_without_a_kernel(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    """Images in another order than the gradient or the addend: the body of the fused op."""
    monkeypatch.setenv("ORTMODULE_CUDA_EMULATION", "1")
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(6)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    norm = norm.to(torch.float64 if dtype == torch.float64 else torch.float32)

    class Ends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = copy.deepcopy(norm), copy.deepcopy(norm)

        def forward(self, x: Tensor, addend: Tensor) -> Tensor:
            y = torch.relu(self.first(x)).transpose(2, 3).contiguous()
            return torch.relu(self.second(y) + addend)

    x = torch.randn(4, 6, 5, 5).to(dtype).contiguous(memory_format=torch.channels_last)
    addend = torch.randn(4, 6, 5, 5).to(dtype)
    results = []
    for model, wide in ((ORTModule(Ends()), False), (Ends(), False), (Ends().double(), True)):
        operands = [
            t.to(torch.float64 if wide else dtype).detach().requires_grad_() for t in (x, addend)
        ]
        y = model(*operands)
        y.double().square().mean().backward()
        grads = [t.grad for t in (*operands, *model.parameters()) if t.grad is not None]
        results.append([y.detach(), *grads, *(b for b in model.buffers() if b.is_floating_point())])
    found, eager, exact = results
    least = 1e-13 if dtype == torch.float64 else 1e-6
    for a, b in zip(_errors(found, exact), _errors(eager, exact), strict=True):
        assert a <= 3 * b + least
