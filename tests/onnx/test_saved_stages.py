"""DebugOptions(save_onnx=True): valid files, and the eval graph gives torch's outputs in stock onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from ortmodule_py import DebugOptions, ORTModule, last_run_report
from tests.difficult_model import Block


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


@pytest.mark.parametrize("level", [0, 1])
def test_the_execution_model_shows_what_is_recomputed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: int
) -> None:
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_LEVEL", str(level))
    options = DebugOptions(save_onnx=True, onnx_prefix="gpt", save_path=str(tmp_path))
    model = ORTModule(SmallGpt(), options)
    for length in (24, 32):
        model(torch.randint(31, (8, length))).sum().backward()
    path = tmp_path / "gpt_execution_model_training.onnx"
    names = [node.name for node in onnx.load(str(path)).graph.node]
    assert any("_recompute" in name for name in names) == (level == 1)
    assert len(_names(tmp_path)) == 4


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


class Encoder(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], **options: Any) -> None:
        super().__init__()
        self.rnn = kind(6, 5, num_layers=2, bidirectional=True, **options)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y, state = self.rnn(x)
        return y, *(state if isinstance(state, tuple) else (state,))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("options", [{}, {"batch_first": True, "bias": False}])
def test_recurrent_layers_are_standard_operators(
    tmp_path: Path, kind: type[nn.RNNBase], options: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    if kind is nn.RNN and options:
        options = options | {"nonlinearity": "relu"}
    original = Encoder(kind, **options).eval()
    model = ORTModule(
        original, DebugOptions(save_onnx=True, onnx_prefix="rnn", save_path=str(tmp_path))
    )
    x = torch.randn(4, 3, 6)
    with torch.no_grad():
        model(x)
        want = original(x)
    path = tmp_path / "rnn_torch_exported_inference.onnx"
    onnx.checker.check_model(str(path), full_check=True)
    operators = [node.op_type for node in onnx.load(str(path)).graph.node]
    assert operators.count(kind.__name__) == 4
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    got = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    for mine, theirs in zip(got, want, strict=True):
        np.testing.assert_allclose(mine, theirs.numpy(), rtol=1e-4, atol=1e-5)


class PackedEncoder(nn.Module):
    """Two layers of two directions on a packed batch, and their padded results."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.rnn = kind(6, 5, num_layers=2, bidirectional=True, batch_first=True)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, ...]:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, True, False)
        y, state = self.rnn(packed)
        padded, _ = nn.utils.rnn.pad_packed_sequence(y, True, -1.0)
        return padded, *(state if isinstance(state, tuple) else (state,))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_packed_batches_are_standard_operators(tmp_path: Path, kind: type[nn.RNNBase]) -> None:
    torch.manual_seed(0)
    original = PackedEncoder(kind).eval()
    options = DebugOptions(save_onnx=True, onnx_prefix="packed", save_path=str(tmp_path))
    model = ORTModule(original, options)
    x, lengths = torch.randn(3, 7, 6), torch.tensor([2, 6, 4])
    with torch.no_grad():
        model(x, lengths)
        want = original(x, lengths)
    path = tmp_path / "packed_torch_exported_inference.onnx"
    onnx.checker.check_model(str(path), full_check=True)
    nodes = onnx.load(str(path)).graph.node
    assert all(not node.domain for node in nodes)
    assert [node.op_type for node in nodes].count(kind.__name__) == 4
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    given = {"x": x.numpy(), "lengths": lengths.numpy()}
    # The greatest length is an input of the piece, so of the file.
    (steps,) = {entry.name for entry in session.get_inputs()} - set(given)
    got = session.run(None, given | {steps: np.array([6])})
    for mine, theirs in zip(got, want, strict=True):
        np.testing.assert_allclose(mine, theirs.numpy(), rtol=1e-4, atol=1e-5)


def test_prefix_is_needed() -> None:
    with pytest.raises(ValueError, match="onnx_prefix"):
        DebugOptions(save_onnx=True)


class Picked(nn.Module):
    """The list of columns is a constant of the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x)[:, [0, 2]] + torch.tensor([1.0, -1.0])


class Tied(nn.Module):
    """One weight under two names, of which the second runs first."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.a.weight = self.b.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a(self.b(x).relu())


@pytest.mark.parametrize("kind", [Picked, Tied])
def test_all_data_of_a_piece_are_saved(kind: type[nn.Module], tmp_path: Path) -> None:
    original = kind()
    model = ORTModule(
        original, DebugOptions(save_onnx=True, onnx_prefix="m", save_path=str(tmp_path))
    )
    x = torch.randn(3, 4)
    model(x).sum().backward()
    with torch.no_grad():
        want = model.eval()(x)
    for stage in ("torch_exported_training", "optimized_pre_grad_training"):
        graph = onnx.load(str(tmp_path / f"m_{stage}.onnx")).graph
        assert [value.name for value in graph.input] == ["x"], stage
    session = onnxruntime.InferenceSession(str(tmp_path / "m_torch_exported_inference.onnx"))
    (got,) = session.run(None, {"x": x.numpy()})
    np.testing.assert_allclose(got, want.numpy(), rtol=1e-4, atol=1e-5)
    if kind is Picked:
        joint = onnx.load(str(tmp_path / "m_optimized_training.onnx")).graph
        stored = {value.name for value in joint.initializer}
        assert stored and stored.isdisjoint(value.name for value in joint.input)


def test_bfloat16_weights_are_saved(tmp_path: Path) -> None:
    original = nn.Linear(4, 3).bfloat16()
    model = ORTModule(
        original, DebugOptions(save_onnx=True, onnx_prefix="m", save_path=str(tmp_path))
    )
    model(torch.randn(2, 4).bfloat16()).sum().backward()
    graph = onnx.load(str(tmp_path / "m_torch_exported_training.onnx")).graph
    stored = {value.name: value for value in graph.initializer}
    assert set(stored) == {"weight", "bias"}
    assert stored["weight"].data_type == onnx.TensorProto.BFLOAT16
    bits = np.frombuffer(stored["weight"].raw_data, np.int16).reshape(3, 4)
    np.testing.assert_array_equal(bits, original.weight.detach().view(torch.int16).numpy())


class WithOddTensors(nn.Module):
    """Some of its tensors have no data, or data that ONNX does not know; none is used."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.lazy = nn.LazyLinear(4)
        self.register_buffer("scale", torch.ones(4).to(torch.float8_e4m3fn))
        self.register_buffer("sparse", torch.eye(4).to_sparse())
        self.register_buffer("absent", torch.ones(4, device="meta"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x)


def test_tensors_that_no_piece_takes_do_not_matter(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = ORTModule(
        WithOddTensors(), DebugOptions(save_onnx=True, onnx_prefix="m", save_path=str(tmp_path))
    )
    model(torch.randn(2, 4)).sum().backward()
    assert last_run_report(model)["compiled"]
    assert len(_names(tmp_path)) == 4 and "not saved" not in capfd.readouterr().err
    assert model.fc.weight.grad is not None


def test_training_goes_on_where_no_file_can_be_written(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "graphs"
    folder.mkdir()
    model = ORTModule(
        nn.Linear(4, 4), DebugOptions(save_onnx=True, onnx_prefix="m", save_path=str(folder))
    )
    folder.rmdir()
    x = torch.randn(2, 4)
    model(x).sum().backward()
    with torch.no_grad():
        model.eval()(x)
    report = last_run_report(model)
    assert report["compiled"] and report["captures"] == 2, report
    assert capfd.readouterr().err.count("graphs are not saved: [save]") == 1
