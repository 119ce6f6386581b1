"""Fourier transforms: DFT and STFT, fast ones of lengths with small factors, beside numpy and onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from ortmodule_py import InferenceSession, SessionOptions
from tests.inference.test_data_sizes import stock
from tests.inference.test_session import ONE_THREAD

Array = np.ndarray[Any, Any]


def model_of(op: str, x: Array, numbers: list[Any], opset: int = 20, **attributes: Any) -> bytes:
    names = ["x"] + [f"n{i}" if number is not None else "" for i, number in enumerate(numbers)]
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    sizes: list[Any] = ["rows", *x.shape[1:]] if op == "DFT" else list(x.shape)
    graph = helper.make_graph(
        [helper.make_node(op, names, ["y"], **attributes)],
        "g",
        [helper.make_tensor_value_info("x", kind, sizes)],
        [helper.make_tensor_value_info("y", kind, None)],
        [
            numpy_helper.from_array(np.asarray(number), f"n{i}")
            for i, number in enumerate(numbers)
            if number is not None
        ],
    )
    opsets = [helper.make_opsetid("", opset)]
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    return bytes(model.SerializeToString())


def transformed(x: Array, length: int, inverse: bool, one_sided: bool) -> Array:
    wide = x.astype(np.float64)
    z = wide[..., 0] if x.shape[-1] == 1 else wide[..., 0] + 1j * wide[..., 1]
    if one_sided and inverse:  # the first and the middle have no imaginary part
        return np.asarray(np.fft.irfft(z, length, 1))
    if one_sided:
        return np.asarray(np.fft.rfft(z, length, 1))
    return np.asarray(np.fft.ifft(z, length, 1) if inverse else np.fft.fft(z, length, 1))


@pytest.mark.parametrize("rows", [1, 20])
@pytest.mark.parametrize("length", [16, 17, 30, 49, 121, 400, 401, 1024, 1042])
@pytest.mark.parametrize(("inverse", "one_sided"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_any_length_and_direction(inverse: int, one_sided: int, length: int, rows: int) -> None:
    random = np.random.default_rng(length)
    given = length // 2 + 1 if inverse and one_sided else length
    parts = 1 if one_sided and not inverse else 2
    for dtype, most in ((np.float32, 1e-6), (np.float64, 1e-12)):
        x = random.standard_normal((rows, given, parts)).astype(dtype)
        model = model_of(
            "DFT", x, [np.array(length), np.array(1)], inverse=inverse, onesided=one_sided
        )
        (y,) = InferenceSession(model, ONE_THREAD).run(None, {"x": x})
        found = y[..., 0] if y.shape[-1] == 1 else y[..., 0] + 1j * y[..., 1]
        wanted = transformed(x, length, bool(inverse), bool(one_sided))
        assert found.shape == wanted.shape
        assert np.abs(found - wanted).max() < most * np.abs(wanted).max()


@pytest.mark.parametrize("length", [20, 64, 100, 521])
def test_a_signal_that_is_shorter_or_longer(length: int) -> None:
    x = np.random.default_rng(0).standard_normal((3, 64, 2)).astype("float32")
    model = model_of("DFT", x, [np.array(length), np.array(1)])
    (y,) = InferenceSession(model, ONE_THREAD).run(None, {"x": x})
    wanted = transformed(x, length, False, False)
    np.testing.assert_allclose(y[..., 0] + 1j * y[..., 1], wanted, atol=1e-4)


def test_a_long_length_with_a_large_prime_factor() -> None:
    """Onnxruntime's errs by 2 there, of 400."""
    x = np.random.default_rng(0).standard_normal((1, 47997, 1)).astype("float32")
    model = model_of("DFT", x, [None, np.array(1)], onesided=1)
    (y,) = InferenceSession(model, ONE_THREAD).run(None, {"x": x})
    wanted = transformed(x, 47997, False, True)
    np.testing.assert_allclose(y[..., 0] + 1j * y[..., 1], wanted, atol=1e-4)


@pytest.mark.parametrize("length", [64, 400, 512])
def test_frames_of_a_signal(length: int) -> None:
    x = np.random.default_rng(0).standard_normal((2, 2000, 1)).astype("float32")
    window = np.hanning(length).astype("float32")
    model = model_of("STFT", x, [np.array(length // 4), window, np.array(length)], 17)
    (theirs,) = stock(model).run(None, {"x": x})
    session = InferenceSession(model, ONE_THREAD)
    (ours,) = session.run(None, {"x": x})
    np.testing.assert_allclose(ours, theirs, atol=3e-3)
    assert "[FourierTransform]" in session.plan({"x": x})


def test_an_optimized_file_has_the_operator(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((4, 48, 1)).astype("float32")
    model = model_of("DFT", x, [None, np.array(1)], onesided=1)
    options = SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    (ours,) = InferenceSession(model, options).run(None, {"x": x})
    saved = (tmp_path / "optimized.onnx").read_bytes()
    assert "DFT" in [each.op_type for each in onnx.load_from_string(saved).graph.node]
    (theirs,) = stock(saved).run(None, {"x": x})
    np.testing.assert_allclose(ours, theirs, atol=1e-4)
