"""Sessions that keep weights in 16 bits (SessionOptions.enable_fp16)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import ortmodule_py.onnxruntime as ort
from ortmodule_py.inference.notices import forget_notices
from tests.inference.models import model_bytes
from tests.inference.test_session import mlp, x_of

FLOAT = TensorProto.FLOAT


def session_of(model: bytes | str, **options: Any) -> ort.InferenceSession:
    chosen = ort.SessionOptions()
    for name, value in options.items():
        setattr(chosen, name, value)
    return ort.InferenceSession(model, chosen)


def test_weights_in_float16() -> None:
    width = 512
    plain, half = session_of(mlp(width)), session_of(mlp(width), enable_fp16=True)
    feed = {"x": x_of(7)}
    results = [session.run(None, feed) for session in (plain, half)]
    assert results[1][0].dtype == np.float32
    assert 0 < np.abs(results[0][0] - results[1][0]).max() < 1e-2
    reports = [session.memory({"x": (7, 4)}) for session in (plain, half)]
    assert reports[1].weights_bytes == reports[0].weights_bytes // 2


def test_products_widen_weights_of_16_bits_block_by_block(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    weight = random.standard_normal((1024, 1024)).astype(np.float32)
    model = model_bytes(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"]),
            helper.make_node("MatMul", ["h", "w"], ["y"]),
        ],
        {"x": (FLOAT, ["n", 1024])},
        ["y"],
        {"w": weight},
    )
    (tmp_path / "m.onnx").write_bytes(model)  # of a model in memory the original weights stay
    session = session_of(str(tmp_path / "m.onnx"), enable_fp16=True)
    x = random.standard_normal((3, 1024)).astype(np.float32)
    (y,) = session.run(None, {"x": x})
    half = weight.astype(np.float16).astype(np.float64)
    np.testing.assert_allclose(y, x @ half @ half, rtol=1e-4, atol=1e-2)
    memory = session.memory({"x": x.shape})
    assert memory.weights_bytes == weight.nbytes // 2
    assert memory.peak_bytes < weight.nbytes // 16, "no weight is widened as a whole"


def test_convolutions_widen_weights_of_16_bits_piece_by_piece(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    weight = 0.05 * random.standard_normal((256, 256, 3, 3)).astype(np.float32)
    convolve = dict(pads=[1, 1, 1, 1])
    model = model_bytes(
        [
            helper.make_node("Conv", ["x", "w"], ["h"], **convolve),
            helper.make_node("Conv", ["h", "v"], ["i"], **convolve),
            helper.make_node("GlobalMaxPool", ["i"], ["y"]),
        ],
        {"x": (FLOAT, ["n", 256, 8, 8])},
        ["y"],
        {"w": weight, "v": weight[::-1].copy()},
    )
    (tmp_path / "m.onnx").write_bytes(model)
    session = session_of(str(tmp_path / "m.onnx"), enable_fp16=True)
    x = random.standard_normal((2, 256, 8, 8)).astype(np.float32)
    (y,) = session.run(None, {"x": x})
    (wanted,) = session_of(str(tmp_path / "m.onnx")).run(None, {"x": x})
    np.testing.assert_allclose(y, wanted, rtol=1e-2, atol=1e-2 * np.abs(wanted).max())
    memory = session.memory({"x": x.shape})
    assert memory.weights_bytes == weight.nbytes, "of two, half"
    assert memory.peak_bytes < weight.nbytes // 2, "no weight is widened as a whole"


@pytest.mark.parametrize(
    ("value", "dtype", "exact"),
    [(7e4, "bfloat16", 7e4), (1e-9, "bfloat16", 1e-9), (3.4e38, "float32", 3.4e38)],
)
def test_weights_beyond_float16_are_named(value: float, dtype: str, exact: float) -> None:
    lines: list[str] = []
    forget_notices()
    ort.set_default_logger_callback(lambda severity, *rest: lines.append(rest[-1]))
    weight: np.ndarray[Any, Any] = np.full((4, 128), value, "float32")
    model = model_bytes(
        [helper.make_node("Add", ["x", "strange"], ["y"])],
        {"x": (FLOAT, [4, 128])},
        ["y"],
        {"strange": weight},
    )
    (y,) = session_of(model, enable_fp16=True).run(None, {"x": np.zeros((4, 128), "float32")})
    ort.set_default_logger_callback(None)
    np.testing.assert_allclose(y, np.full((4, 128), exact), rtol=5e-3)
    assert any("strange: float16 has no such numbers" in line and dtype in line for line in lines)


def test_a_model_in_float16_computes_in_float32(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    weight = random.standard_normal((256, 256)).astype(np.float16)
    model = model_bytes(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"]),
            helper.make_node("MatMul", ["h", "w"], ["i"]),
            helper.make_node("Mul", ["i", "small"], ["y"]),
        ],
        {"x": (TensorProto.FLOAT16, ["n", 256])},
        ["y"],
        {"w": weight, "small": np.array([2.0**-12], np.float16)},
    )
    (tmp_path / "m.onnx").write_bytes(model)
    session = session_of(str(tmp_path / "m.onnx"))
    x = (1000 * random.standard_normal((3, 256))).astype(np.float16)
    (y,) = session.run(None, {"x": x})
    wide = weight.astype(np.float64)
    inside = x.astype(np.float64) @ wide @ wide
    assert np.abs(inside).max() > 65504
    assert y.dtype == np.float16
    np.testing.assert_allclose(y, inside * 2.0**-12, rtol=1e-3, atol=1e-3)
    assert session.memory({"x": x.shape}).weights_bytes < 1.05 * weight.nbytes


def test_a_variance_in_float16_is_computed_in_float32() -> None:
    """The squares of small numbers are nothing in float16."""
    half = TensorProto.FLOAT16
    x = (np.random.default_rng(0).standard_normal((1, 64, 3)) * 1e-4).astype("float16")
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["square"]),
        helper.make_node("ReduceMean", ["square", "axis"], ["mean"]),
        helper.make_node("Sqrt", ["mean"], ["deviation"]),
        helper.make_node("Div", ["x", "deviation"], ["y"]),
    ]
    model = model_bytes(nodes, {"x": (half, [1, 64, 3])}, ["y"], {"axis": np.array([1])})
    (y,) = session_of(model).run(None, {"x": x})
    wide = x.astype("float32")
    np.testing.assert_allclose(y, wide / np.sqrt((wide**2).mean(1, keepdims=True)), rtol=2e-3)
