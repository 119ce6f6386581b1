"""Batch norm by the CUDA kernels, compiled for the host: layouts, types, statistics, one write-back."""

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
    (6, 7),
    (3, 8, 10),
    (3, 5, 7, 3),
    (17, 64, 9, 9),
    (2, 24, 4, 4),
    (2, 8, 3, 4, 6),
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
def test_an_outlier_first_does_not_spoil_the_variance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Differences are taken from the first element that each thread sees."""
    monkeypatch.setenv("ORTMODULE_CUDA_EMULATION", "1")
    torch.manual_seed(0)
    x = torch.randn(32, 8, 12, 12) + 100
    x[0, :, 0, 0] = 1000
    layer = nn.BatchNorm2d(8)
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
