"""ORTModule.save_onnx: the file of a trained model, run by onnxruntime and by our session."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from ortmodule_py import DebugOptions, InferenceSession, LogLevel, ORTModule, ORTModuleError

QUIET = DebugOptions(LogLevel.FATAL)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.3, batch_first=True)
        self.norm = nn.BatchNorm1d(16)
        self.head = nn.Linear(16, 3)

    def forward(self, tokens: Tensor, scale: float = 1.0, *, bias: Tensor) -> dict[str, Tensor]:
        x = self.layer(self.embedding(tokens))
        x = self.norm(x.transpose(1, 2)).mean(2)
        return {"scores": self.head(x) * scale + bias, "features": x, "bias": bias}


class Image(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(1)
        )
        self.head = nn.LazyLinear(4)

    def forward(self, image: Tensor) -> Tensor:
        return self.head(self.body(image))


def trained(module: nn.Module, *args: Any, **kwargs: Any) -> ORTModule:
    model = ORTModule(module, QUIET)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for _ in range(2):
        out = model(*args, **kwargs)
        loss = out["scores"].square().mean() if isinstance(out, dict) else out.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def check(path: Path, feeds: dict[str, Tensor], expected: list[Tensor]) -> None:
    onnx.checker.check_model(str(path))
    arrays = {name: tensor.numpy() for name, tensor in feeds.items()}
    for session in (onnxruntime.InferenceSession(str(path)), InferenceSession(path)):
        for ours, wanted in zip(session.run(None, arrays), expected, strict=True):
            np.testing.assert_allclose(ours, wanted.numpy(), rtol=1e-4, atol=1e-5)


def test_a_trained_model_with_a_batch_that_may_change(tmp_path: Path) -> None:
    torch.manual_seed(0)
    tokens, bias = torch.randint(0, 50, (4, 7)), torch.randn(4, 3)
    model = trained(Encoder(), tokens, bias=bias)
    path = tmp_path / "model.onnx"
    shapes = {"tokens": {0: "batch", 1: "length"}, "bias": {0: "batch"}}
    model.save_onnx(
        path, tokens, 2.0, bias=bias, dynamic_shapes=shapes, output_names=["s", "f", "b"]
    )
    assert model.training and model.layer.training, "it is left in training mode"
    session = InferenceSession(path)
    assert {i.name: i.shape for i in session.get_inputs()} == {
        "tokens": ["batch", "length"],
        "bias": ["batch", 3],
    }
    assert [output.name for output in session.get_outputs()] == ["s", "f", "b"]
    model.eval()
    for batch, length in ((4, 7), (2, 5), (1, 3)):
        tokens, bias = torch.randint(0, 50, (batch, length)), torch.randn(batch, 3)
        with torch.no_grad():
            out = model._original(tokens, 2.0, bias=bias)
        check(path, {"tokens": tokens, "bias": bias}, list(out.values()))


def test_fixed_sizes_and_names(tmp_path: Path) -> None:
    torch.manual_seed(0)
    image = torch.randn(2, 3, 16, 16)
    module = Image()
    module(image)
    model = trained(module, image)
    path = tmp_path / "image.onnx"
    model.save_onnx(path, image, input_names=["pixels"])
    (pixels,) = InferenceSession(path).get_inputs()
    assert (pixels.name, pixels.shape) == ("pixels", [2, 3, 16, 16])
    module.eval()
    with torch.no_grad():
        check(path, {"pixels": image}, [module(image)])
    names = {tensor.name for tensor in onnx.load(path).graph.initializer}
    assert {"head.weight", "body.0.weight", "body.1.running_mean"} <= names


@pytest.mark.parametrize("bidirectional", [False, True])
def test_projected_states_are_a_scan(tmp_path: Path, bidirectional: bool) -> None:
    torch.manual_seed(0)
    module = nn.LSTM(3, 5, 2, batch_first=True, proj_size=2, bidirectional=bidirectional)
    path, x = tmp_path / "lstm.onnx", torch.randn(2, 6, 3)
    ORTModule(module, QUIET).save_onnx(path, x, input_names=["x"], dynamic_shapes={"x": {0: "n"}})
    assert {node.op_type for node in onnx.load(path).graph.node} >= {"Scan"}
    for batch in (2, 3):
        x = torch.randn(batch, 6, 3)
        with torch.no_grad():
            y, (h, c) = module(x)
        check(path, {"x": x}, [y, h, c])


class Broken(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if float(x.sum()) > 0:
            return x * 2
        return x


def test_a_graph_break_names_its_line(tmp_path: Path) -> None:
    model = ORTModule(Broken(), QUIET)
    with pytest.raises(Exception, match=r"test_save_onnx\.py") as caught:
        model.save_onnx(tmp_path / "broken.onnx", torch.ones(3))
    assert "float(x.sum())" in str(caught.value) or "line" in str(caught.value)
    assert not list(tmp_path.iterdir()), "no file is left"


def test_a_dimension_may_be_counted_from_the_end(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"odd\xff.onnx")
    model = ORTModule(nn.Linear(3, 2), QUIET)
    model.save_onnx(path, torch.ones(2, 3), dynamic_shapes={"input": {-2: "rows"}})
    assert InferenceSession(path).get_inputs()[0].shape == ["rows", 3]


def test_arguments_that_do_not_fit(tmp_path: Path) -> None:
    model = ORTModule(nn.Linear(3, 2), QUIET)
    path = tmp_path / "linear.onnx"
    with pytest.raises(ValueError, match="input_names must have 1"):
        model.save_onnx(path, torch.ones(2, 3), input_names=["a", "b"])
    with pytest.raises(ValueError, match="must name inputs of"):
        model.save_onnx(path, torch.ones(2, 3), dynamic_shapes={"y": {0: "n"}})
    with pytest.raises(ValueError, match="at least 2 in the example"):
        model.save_onnx(path, torch.ones(1, 3), dynamic_shapes={"input": {0: "n"}})
    with pytest.raises(ORTModuleError, match="the model fixes it to 3"):
        model.save_onnx(path, torch.ones(2, 3), dynamic_shapes={"input": {1: "n"}})
    with pytest.raises(ValueError, match="output_names must have 1"):
        model.save_onnx(path, torch.ones(2, 3), output_names=["a", "b"])
    for dim in (2, -3, "0", 1.0):
        with pytest.raises(ValueError, match=rf"'input' must be from -2 to 1, but found {dim!r}"):
            model.save_onnx(path, torch.ones(2, 3), dynamic_shapes={"input": {dim: "n"}})
    with pytest.raises(ValueError, match=r"at most one row for each of \['input'\], but found 2"):
        model.save_onnx(path, torch.ones(2, 3), dynamic_shapes=[{0: "n"}, {0: "n"}])
    assert not path.exists()
