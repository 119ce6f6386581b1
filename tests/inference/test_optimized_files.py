"""Files that stock onnxruntime has optimized: com.microsoft's fused operators, and those of
com.microsoft.nchwc, whose weights lie as its processor wants them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as stock
import pytest
from onnx import TensorProto, helper

import ortmodule_py.onnxruntime as ours
from ortmodule_py.inference import InferenceSession
from tests.inference.models import model_bytes, weights, x_of

LEVELS = {
    "basic": stock.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": stock.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": stock.GraphOptimizationLevel.ORT_ENABLE_ALL,
}
node = helper.make_node


def pooled() -> bytes:
    """Channels that fill no block, a depthwise convolution, a sum, activations, windows."""
    same: dict[str, Any] = {"pads": [1, 1, 1, 1]}
    nodes = [
        node("Conv", ["x", "k1", "b1"], ["c1"], strides=[2, 2], **same),
        node("Relu", ["c1"], ["r1"]),
        node("Conv", ["r1", "k2"], ["c2"], group=20, **same),
        node("Clip", ["c2", "low", "high"], ["r2"]),
        node("Conv", ["r2", "k3", "b3"], ["c3"], **same),
        node("Add", ["c3", "r2"], ["s3"]),
        node("LeakyRelu", ["s3"], ["r3"], alpha=0.1),
        node("Conv", ["r3", "k4"], ["c4"]),
        node("HardSigmoid", ["c4"], ["r4"], alpha=0.3, beta=0.4),
        node("MaxPool", ["r4"], ["m4"], kernel_shape=[3, 3], strides=[2, 2], **same),
        node("AveragePool", ["m4"], ["a4"], kernel_shape=[2, 2], count_include_pad=1, **same),
        node("Conv", ["a4", "k5"], ["c5"], group=2, dilations=[2, 2], pads=[2, 2, 2, 2]),
        node("GlobalAveragePool", ["c5"], ["mean"]),
        node("GlobalMaxPool", ["c5"], ["most"]),
        node("Transpose", ["c5"], ["last"], perm=[0, 2, 3, 1]),
    ]
    numbers = weights(
        k1=(20, 3, 3, 3),
        b1=(20,),
        k2=(20, 1, 3, 3),
        k3=(20, 20, 3, 3),
        b3=(20,),
        k4=(32, 20, 1, 1),
        k5=(64, 16, 3, 3),
    )
    bounds = {"low": np.float32(0), "high": np.float32(6)}
    inputs = {"x": (TensorProto.FLOAT, ["n", 3, 32, 32])}
    return model_bytes(nodes, inputs, ["mean", "most", "last"], {**numbers, **bounds})


def resized(mode: str, coordinates: str) -> bytes:
    attrs = {"mode": mode, "coordinate_transformation_mode": coordinates}
    if mode == "nearest":
        attrs["nearest_mode"] = "floor"
    nodes = [
        node("Conv", ["x", "k1"], ["c1"]),
        node("Resize", ["c1", "", "scales"], ["u1"], **attrs),
        node("Conv", ["u1", "k2"], ["y"]),
    ]
    numbers = weights(k1=(32, 16, 1, 1), k2=(32, 32, 1, 1))
    numbers["scales"] = np.array([1, 1, 3, 2], np.float32)
    return model_bytes(nodes, {"x": (TensorProto.FLOAT, ["n", 16, 5, 6])}, ["y"], numbers)


def quantized() -> bytes:
    random = np.random.default_rng(0)
    steps = {"s": np.float32(0.02), "t": np.float32(0.004)}
    zeros = {"z": np.uint8(120), "w_zero": np.int8(0)}
    kernels = {
        "k1": random.integers(-60, 60, (16, 8, 3, 3), dtype=np.int8),
        "k2": random.integers(-60, 60, (16, 1, 3, 3), dtype=np.int8),
        "bias": random.integers(-3000, 3000, 16, dtype=np.int32),
    }
    x, w, y = ["s", "z"], ["t", "w_zero"], ["s", "z"]
    window: dict[str, Any] = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    nodes = [
        node("QuantizeLinear", ["x", *x], ["q"]),
        node("QLinearConv", ["q", *x, "k1", *w, *y, "bias"], ["c1"], **window),
        node("MaxPool", ["c1"], ["m1"], strides=[2, 2], **window),
        node("QLinearConv", ["m1", *x, "k2", *w, *y], ["c2"], group=16, **window),
        node("DequantizeLinear", ["c2", *y], ["y"]),
    ]
    inputs = {"x": (TensorProto.FLOAT, ["n", 8, 15, 17])}
    return model_bytes(nodes, inputs, ["y"], {**steps, **zeros, **kernels})


def optimized(model: bytes, level: str, folder: Path) -> Path:
    options = stock.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = LEVELS[level]
    options.optimized_model_filepath = str(folder / f"{level}.onnx")
    stock.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return folder / f"{level}.onnx"


def compare(path: Path, x: np.ndarray[Any, Any], atol: float = 1e-4) -> set[str]:
    """Returns the operators of the file that are not of ONNX."""
    peer = stock.InferenceSession(path, providers=["CPUExecutionProvider"])
    found = InferenceSession(path).run(None, {"x": x})
    for one, other in zip(found, peer.run(None, {"x": x}), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=atol)
    return {step.op_type for step in onnx.load(path).graph.node if step.domain}


@pytest.mark.parametrize("level", LEVELS)
def test_convolutions_and_pools(level: str, tmp_path: Path) -> None:
    blocked = compare(optimized(pooled(), level, tmp_path), x_of(2, 3, 32, 32))
    pools = {"MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"}
    blocks = {"Conv", "ReorderOutput", *pools}
    assert blocked >= blocks if level == "all" else not blocked & blocks


@pytest.mark.parametrize(
    ("mode", "coordinates"),
    [
        ("nearest", "asymmetric"),
        ("linear", "asymmetric"),
        ("linear", "align_corners"),
        ("linear", "half_pixel"),
    ],
)
def test_images_that_are_resized(mode: str, coordinates: str, tmp_path: Path) -> None:
    path = optimized(resized(mode, coordinates), "all", tmp_path)
    assert compare(path, x_of(2, 16, 5, 6)) >= {"ReorderInput", "Upsample", "ReorderOutput"}


def test_bytes_with_channels_last(tmp_path: Path) -> None:
    path = optimized(quantized(), "all", tmp_path)
    step = 0.02  # a result halfway between two numbers may become either
    assert compare(path, x_of(2, 8, 15, 17), 1.001 * step) == {"QLinearConv", "NhwcMaxPool"}


def test_weights_in_blocks_of_another_processor(tmp_path: Path) -> None:
    path = optimized(resized("nearest", "asymmetric"), "all", tmp_path)
    model = onnx.load(path)
    kernel = next(weight for weight in model.graph.initializer if weight.dims[1:2] == [32])
    kernel.dims[:2] = [4, 256]
    with pytest.raises(RuntimeError, match="channels must be multiples of"):
        InferenceSession(model.SerializeToString()).run(None, {"x": x_of(2, 16, 5, 6)})


FILE = "session.optimized_model_external_initializers_file_name"
LEAST = "session.optimized_model_external_initializers_min_size_in_bytes"


@pytest.mark.parametrize("package", [stock, ours])
@pytest.mark.parametrize("folder", [".", "inner"])
def test_weights_of_an_optimized_file_go_to_one_beside_it(
    package: Any, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of at least so many bytes; a session of ours or of stock's reads both."""
    monkeypatch.chdir(tmp_path)
    Path("inner").mkdir()
    path = f"{folder}/optimized.onnx"
    options = package.SessionOptions()
    options.graph_optimization_level = package.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.optimized_model_filepath = path
    options.add_session_config_entry(FILE, "weights.bin")
    options.add_session_config_entry(LEAST, "64")
    graph = two_weights()
    expected = package.InferenceSession(graph, options).run(None, {"x": x_of(3, 4)})
    written = onnx.load(path, load_external_data=False).graph.initializer
    beside = {each.name for each in written if each.data_location == TensorProto.EXTERNAL}
    assert len(written) == 2 and len(beside) == 1
    assert Path(folder, "weights.bin").exists()
    for reader in (stock, ours):
        (y,) = reader.InferenceSession(path).run(None, {"x": x_of(3, 4)})
        np.testing.assert_allclose(y, expected[0], rtol=1e-5)


def two_weights() -> bytes:
    """Of 64 and of 16 bytes."""
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("Add", ["h", "b"], ["y"])]
    return model_bytes(nodes, {"x": (TensorProto.FLOAT, [3, 4])}, ["y"], weights(w=(4, 4), b=(4,)))


@pytest.mark.parametrize(
    "entries,message",
    [
        ({FILE: "../weights.bin"}, "another file in the model's folder"),
        ({FILE: "/weights.bin"}, "another file in the model's folder"),
        ({FILE: "optimized.onnx"}, "another file in the model's folder"),
        ({FILE: "weights.bin", LEAST: "many"}, "must be a number, but found 'many'"),
    ],
)
def test_other_places_of_weights_are_refused(
    entries: dict[str, str], message: str, tmp_path: Path
) -> None:
    options = ours.SessionOptions()
    options.optimized_model_filepath = tmp_path / "optimized.onnx"
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    with pytest.raises(RuntimeError, match=message):
        ours.InferenceSession(two_weights(), options)
    assert not list(tmp_path.iterdir())


def test_weights_that_are_all_small_stay_in_the_optimized_file(tmp_path: Path) -> None:
    options = ours.SessionOptions()
    options.optimized_model_filepath = tmp_path / "optimized.onnx"
    options.add_session_config_entry(FILE, "weights.bin")  # from 1024 bytes on
    ours.InferenceSession(two_weights(), options)
    assert [path.name for path in tmp_path.iterdir()] == ["optimized.onnx"]
