"""DebugOptions(save_onnx=True): valid files, and the eval graph gives torch's outputs in stock onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from ortmodule_py import DebugOptions, ORTModule
from tests.e2e.difficult_model import Block


class SmallGpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(31, 32)
        self.blocks = nn.Sequential(Block(32, 4, 0.1), Block(32, 4, 0.1))
        self.head = nn.Linear(32, 31)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.embed(tokens)))


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.onnx"))


def test_training_stages_are_valid(tmp_path: Path) -> None:
    model = ORTModule(
        SmallGpt(), DebugOptions(save_onnx=True, onnx_prefix="gpt", save_path=str(tmp_path))
    )
    model(torch.randint(31, (2, 7))).sum().backward()
    assert _names(tmp_path) == [
        "gpt_execution_model_training.onnx",
        "gpt_optimized_pre_grad_training.onnx",
        "gpt_optimized_training.onnx",
        "gpt_torch_exported_training.onnx",
    ]
    onnx.checker.check_model(str(tmp_path / "gpt_torch_exported_training.onnx"), full_check=True)


def test_eval_graph_runs_in_stock_onnxruntime(tmp_path: Path) -> None:
    torch.manual_seed(0)
    original = SmallGpt().eval()
    model = ORTModule(
        original, DebugOptions(save_onnx=True, onnx_prefix="gpt", save_path=str(tmp_path))
    )
    tokens = torch.randint(31, (2, 7))
    with torch.no_grad():
        ours = model(tokens)
        want = original(tokens)
    path = tmp_path / "gpt_torch_exported_inference.onnx"
    onnx.checker.check_model(str(path), full_check=True)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (got,) = session.run(None, {session.get_inputs()[0].name: tokens.numpy()})
    np.testing.assert_allclose(got, want.numpy(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours, want, rtol=1e-4, atol=1e-5)


def test_prefix_is_needed() -> None:
    with pytest.raises(ValueError, match="onnx_prefix"):
        DebugOptions(save_onnx=True)
