"""Models that torch's `prepare_qat` prepares, with its default configurations."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.ao.quantization as quantization
from torch import Tensor, nn

from ortmodule_py import ORTModule, last_run_report
from ortmodule_py.dynamo.patches.table import running_torch
from tests.semantics import QUIET, assert_whole, original


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant = quantization.QuantStub(), quantization.DeQuantStub()
        self.conv, self.norm, self.relu = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()
        self.fc = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.norm(self.conv(self.quant(x))))
        result: Tensor = self.dequant(self.fc(y.mean((2, 3))))
        return result


def _prepared(backend: str) -> nn.Module:
    model = quantization.fuse_modules_qat(Images().train(), [["conv", "norm", "relu"]])
    model.qconfig = quantization.get_default_qat_qconfig(backend)
    prepared: nn.Module = quantization.prepare_qat(model)
    return prepared


def _train(model: Any) -> list[Tensor]:
    """Statistics are fixed, as before the end of a training, and the model evaluated."""
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    results = []
    for step in range(5):
        if step == 3:
            original(model).apply(quantization.disable_observer)
        y = model(torch.randn(4 + step % 2, 3, 6, 6))
        optimizer.zero_grad()
        y.square().mean().backward()
        optimizer.step()
        results.append(y)
    model.eval()
    with torch.no_grad():
        results.append(model(torch.randn(3, 3, 6, 6)))
    return results


def _differ_by_steps(got: Tensor, want: Tensor) -> bool:
    """Values on the border of two quantization steps may fall into either."""
    return bool((got - want).abs().mean() <= 0.02 * want.abs().mean() + 1e-6)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("level", ["0", "2"])
@pytest.mark.parametrize("backend", ["x86", "qnnpack"])
def test_the_model_is_one_piece(backend: str, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first step gives statistics by channel their sizes, and runs in eager PyTorch."""
    torch._dynamo.reset()
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_LEVEL", level)
    eager = _prepared(backend)
    model = ORTModule(copy.deepcopy(eager), QUIET)
    for got, want in zip(_train(model), _train(eager), strict=True):
        assert got.requires_grad == want.requires_grad and _differ_by_steps(got, want)
    known = dict(eager.named_buffers())
    for name, got in original(model).named_buffers():
        assert got.shape == known[name].shape and _differ_by_steps(got.float(), known[name].float())
    report = dict(last_run_report(model))
    assert_whole(report, captures=3)
    if running_torch() >= (2, 13):
        first = ["in its first step" in piece for piece in report["eager_pieces"]]
        assert first == ([True] if backend == "x86" else [])
    converted = quantization.convert(original(model))
    assert converted(torch.randn(2, 3, 6, 6)).shape == (2, 5)
