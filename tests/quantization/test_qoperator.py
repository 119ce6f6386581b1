"""quantize_static with QOperator beside onnxruntime's: the same nodes and, from the same ranges, bits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import onnxruntime.quantization as stock
import pytest
from onnx import helper, numpy_helper

from ortmodule_py import InferenceSession
from ortmodule_py.quantization import QuantFormat, QuantType, quantize_static
from tests.quantization import models
from tests.quantization.test_dynamic import assert_same_file
from tests.quantization.test_static import Reader, both


def image_network(opset: int = 18) -> onnx.ModelProto:
    """Operators of images: dropped Relu, pools, integers that are moved, and a head."""
    return models.build(
        [
            helper.make_node("Conv", ["x", "w", "b"], ["c"], "conv", pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["c"], ["r"], "relu"),
            helper.make_node("MaxPool", ["r"], ["m"], "max", kernel_shape=[2, 2], strides=[2, 2]),
            helper.make_node("Conv", ["m", "v"], ["d"], "deep", group=2),
            helper.make_node("LeakyRelu", ["d"], ["l"], "leaky", alpha=0.1),
            helper.make_node("AveragePool", ["l"], ["p"], "mean", kernel_shape=[2, 2]),
            helper.make_node("Pad", ["p", "pads", "low"], ["q"], "pad"),
            helper.make_node("Pad", ["q", "pads"], ["q0"], "pad0"),
            helper.make_node("Resize", ["q0", "", "factors"], ["z"], "resize", mode="nearest"),
            helper.make_node("Split", ["z"], ["s1", "s2"], "split", axis=1, num_outputs=2),
            helper.make_node("Add", ["s1", "s2"], ["a"], "add"),
            helper.make_node("Mul", ["a", "scale"], ["e"], "mul"),
            helper.make_node("Concat", ["e", "s1"], ["k"], "concat", axis=1),
            helper.make_node("Sigmoid", ["k"], ["h"], "sigmoid"),
            helper.make_node("GlobalAveragePool", ["h"], ["g"], "global"),
            helper.make_node("Flatten", ["g"], ["f"], "flat"),
            helper.make_node("Gemm", ["f", "o", "ob"], ["u"], "head", transB=1),
            helper.make_node("ArgMax", ["u"], ["best"], "best", axis=1),
            helper.make_node("Softmax", ["u"], ["y"], "softmax"),
        ],
        {"x": (models.FLOAT, ["n", 3, 8, 8])},
        {
            "y": (models.FLOAT, ["n", 5]),
            "best": (models.INT64, ["n", 1]),
            "e": (models.FLOAT, ["n", 2, "h", "w"]),
        },
        {
            "w": models.random(4, 3, 3, 3, scale=0.3),
            "b": models.random(4),
            "v": models.random(4, 2, 2, 2, scale=0.3),
            "low": np.array(-0.25, np.float32),
            "pads": np.array([0, 0, 1, 0, 0, 0, 0, 1], np.int64),
            "factors": np.array([1, 1, 2, 2], np.float32),
            "scale": models.random(2, 1, 1),
            "o": models.random(5, 4),
            "ob": models.random(5),
        },
        opset=opset,
    )


def moved() -> onnx.ModelProto:
    """Operators that move integers, between a product and an Add; a Where of two values."""
    return models.build(
        [
            helper.make_node("MatMul", ["x", "w"], ["a"], "product"),
            helper.make_node("Unsqueeze", ["a", "one"], ["u"], "wide"),
            helper.make_node("Transpose", ["u"], ["t"], "turn", perm=[0, 2, 1, 3]),
            helper.make_node("Squeeze", ["t", "two"], ["s"], "narrow"),
            helper.make_node("Reshape", ["s", "sizes"], ["r"], "reshape"),
            helper.make_node("Add", ["r", "bias"], ["b"], "add"),
            helper.make_node("Where", ["mask", "b", "bias"], ["y"], "choose"),
            helper.make_node("LayerNormalization", ["b", "bias"], ["z"], "norm"),
        ],
        {"x": (models.FLOAT, ["n", 3, 16])},
        {"y": (models.FLOAT, ["n", 3, 8]), "z": (models.FLOAT, ["n", 3, 8])},
        {
            "w": models.random(16, 8),
            "one": np.array([1], np.int64),
            "two": np.array([2], np.int64),
            "sizes": np.array([0, 3, 8], np.int64),
            "bias": models.random(8),
            "mask": np.arange(8) % 3 > 0,
        },
    )


def gemms() -> onnx.ModelProto:
    """Without what onnxruntime's tool gets wrong: a bias of two nodes, and factors."""
    model = models.gemm()
    scaled = model.graph.node[3]
    scaled.input[2] = "c"
    del scaled.attribute[:]
    model.graph.initializer.append(numpy_helper.from_array(models.random(8, seed=3), "c"))
    return model


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "image": image_network,
    "moved": moved,
    "matmul": models.matmul,
    "gemm": gemms,
    "conv": models.conv,
    "gather": models.gather,
    "shared": models.shared,
}
OPTIONS: dict[str, dict[str, Any]] = {
    "uint8": {"activation_type": "QUInt8", "weight_type": "QUInt8"},
    "mixed": {"activation_type": "QUInt8", "weight_type": "QInt8"},
    "int8": {"activation_type": "QInt8", "weight_type": "QInt8"},
    "per_channel": {
        "activation_type": "QUInt8",
        "weight_type": "QInt8",
        "per_channel": True,
        "reduce_range": True,
    },
    "symmetric": {"extra_options": {"ActivationSymmetric": True, "WeightSymmetric": True}},
    "some": {
        "nodes_to_exclude": ["conv", "first", "one", "add"],
        "extra_options": {"MatMulConstBOnly": True},
    },
    "types": {"op_types_to_quantize": ["Conv", "MatMul", "Gemm", "Transpose"]},
}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", MODELS)
def test_file_is_that_of_stock(name: str, options: str, tmp_path: Path) -> None:
    ours, theirs, report = both(
        MODELS[name](), tmp_path, quant_format=stock.QuantFormat.QOperator, **OPTIONS[options]
    )
    assert_same_file(ours, theirs)
    assert report.quantized


def test_forced_where_is_that_of_stock(tmp_path: Path) -> None:
    ours, theirs, _ = both(
        models.build(
            [
                helper.make_node("MatMul", ["x", "w"], ["a"], "product"),
                helper.make_node("Where", ["mask", "a", "b"], ["y"], "choose"),
            ],
            {"x": (models.FLOAT, ["n", 8])},
            {"y": (models.FLOAT, ["n", 8])},
            {"w": models.random(8, 8), "b": models.random(8), "mask": np.arange(8) % 3 > 0},
        ),
        tmp_path,
        quant_format=stock.QuantFormat.QOperator,
        extra_options={"ForceQuantizeNoInputCheck": True},
    )
    assert_same_file(ours, theirs)
    assert "QLinearWhere" in {node.op_type for node in ours.graph.node}


def test_embedding_is_that_of_stock(tmp_path: Path) -> None:
    """Alone: onnxruntime's tool fails at the nodes behind it, of which it knows no types."""
    ours, theirs, _ = both(
        models.attention(),
        tmp_path,
        quant_format=stock.QuantFormat.QOperator,
        activation_type="QUInt8",
        op_types_to_quantize=["EmbedLayerNormalization"],
    )
    assert_same_file(ours, theirs)
    assert "QEmbedLayerNormalization" in {node.op_type for node in ours.graph.node}


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("kind", ["QUInt8", "QInt8"])
@pytest.mark.parametrize("name", MODELS)
def test_files_run_in_both(name: str, kind: str, per_channel: bool, tmp_path: Path) -> None:
    """onnxruntime as the file says: its fused products saturate on processors without VNNI."""
    model = MODELS[name]()
    onnx.save(model, tmp_path / "m.onnx")
    report = quantize_static(
        tmp_path / "m.onnx",
        tmp_path / "q.onnx",
        Reader(model),
        QuantFormat.QOperator,
        per_channel=per_channel,
        activation_type=QuantType[kind],
        samples=models.feeds(model),
        verbose=False,
    )
    assert all(each.relative < 0.2 for each in report.outputs.values())
    plain = onnxruntime.SessionOptions()
    plain.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    there = onnxruntime.InferenceSession(tmp_path / "q.onnx", plain)
    here = InferenceSession(tmp_path / "q.onnx")
    for feed in models.feeds(model):
        for one, other in zip(here.run(None, feed), there.run(None, feed), strict=True):
            if one.dtype == np.float32:
                assert np.abs(one - other).max() <= 0.03 * max(1e-3, float(np.abs(other).max()))


def outputs(model: onnx.ModelProto, folder: Path, **options: Any) -> tuple[Any, Any, set[str]]:
    """Of the float model and of the quantized one, and the operators of the latter."""
    onnx.save(model, folder / "m.onnx")
    quantize_static(
        folder / "m.onnx",
        folder / "q.onnx",
        Reader(model),
        "QOperator",
        activation_type=QuantType.QUInt8,
        verbose=False,
        **options,
    )
    feed = models.feeds(model)[0]
    exact, quantized = (InferenceSession(folder / f"{each}.onnx").run(None, feed) for each in "mq")
    operators = {node.op_type for node in onnx.load(folder / "q.onnx").graph.node}
    return exact, quantized, operators


def assert_near(one: Any, other: Any) -> None:
    for a, b in zip(one, other, strict=True):
        assert np.abs(a - b).max() <= 0.05 * np.abs(a).max()


@pytest.mark.parametrize("behind", ["sum", "reshape"])
def test_relu_stays_where_integers_do_not_end_with_it(behind: str, tmp_path: Path) -> None:
    """onnxruntime's tool drops it: of a value that a sum reads too, and behind a Reshape."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], "product"),
        helper.make_node("Reshape", ["a", "sizes"], ["m"], "reshape"),
        helper.make_node("Relu", ["m"], ["r"], "relu"),
        helper.make_node("MatMul", ["r", "w"], ["y"], "last"),
    ]
    if behind == "sum":
        nodes[1] = helper.make_node("Identity", ["a"], ["m"])
        nodes[2] = helper.make_node("Relu", ["a"], ["r"], "relu")
        nodes.append(helper.make_node("Add", ["a", "r"], ["z"], "sum"))
    model = models.build(
        nodes,
        {"x": (models.FLOAT, ["n", 8])},
        {
            "y": (models.FLOAT, ["n", 8]),
            **({"z": (models.FLOAT, ["n", 8])} if behind == "sum" else {}),
        },
        {"w": models.random(8, 8), "sizes": np.array([0, 8], np.int64)},
    )
    exact, quantized, operators = outputs(model, tmp_path)
    assert "Relu" in operators
    assert_near(exact, quantized)


def test_a_shared_bias_has_the_scale_of_each_node(tmp_path: Path) -> None:
    """Also where an Add reads it: onnxruntime's tool hands the integers of the first to all."""
    model = models.build(
        [
            helper.make_node("Add", ["x", "b"], ["s"], "sum"),
            helper.make_node("Gemm", ["s", "w", "b"], ["h"], "first"),
            helper.make_node("Gemm", ["h", "v", "b"], ["y"], "second"),
        ],
        {"x": (models.FLOAT, ["n", 8])},
        {"y": (models.FLOAT, ["n", 8])},
        {"w": models.random(8, 8), "v": models.random(8, 8, seed=2) * 5, "b": models.random(8) * 3},
    )
    exact, quantized, operators = outputs(model, tmp_path)
    assert operators >= {"QGemm", "QLinearAdd"}
    assert_near(exact, quantized)


@pytest.mark.parametrize(("alpha", "beta"), [(0.5, 1.0), (1.0, 0.25), (2.0, 0.5), (1.0, 0.0)])
def test_factors_of_a_gemm_are_in_its_bias(alpha: float, beta: float, tmp_path: Path) -> None:
    """onnxruntime's tool takes beta for its reciprocal, and forgets alpha."""
    model = models.build(
        [helper.make_node("Gemm", ["x", "w", "b"], ["y"], "head", alpha=alpha, beta=beta)],
        {"x": (models.FLOAT, ["n", 8])},
        {"y": (models.FLOAT, ["n", 8])},
        {"w": models.random(8, 8), "b": models.random(8) * 9},
    )
    exact, quantized, operators = outputs(model, tmp_path)
    assert "QGemm" in operators
    assert_near(exact, quantized)
    feed = models.feeds(model)[0]
    assert_near(exact, onnxruntime.InferenceSession(tmp_path / "q.onnx").run(None, feed))


def test_what_has_no_integers_stays(tmp_path: Path) -> None:
    model = models.build(
        [
            helper.make_node("Conv", ["x", "w"], ["c"], "conv"),
            helper.make_node(
                "AveragePool", ["c"], ["p"], "mean", kernel_shape=[2, 2], dilations=[2, 2]
            ),
            helper.make_node("InstanceNormalization", ["p", "g", "g"], ["y"], "norm"),
        ],
        {"x": (models.FLOAT, ["n", 3, 8, 8])},
        {"y": (models.FLOAT, ["n", 4, "h", "w"])},
        {"w": models.random(4, 3, 3, 3), "g": models.random(4)},
        opset=19,
    )
    exact, quantized, operators = outputs(model, tmp_path)
    assert operators >= {"QLinearConv", "AveragePool", "InstanceNormalization"}
    assert_near(exact, quantized)


def test_overrides(tmp_path: Path) -> None:
    model, path, cache = image_network(), tmp_path / "m.onnx", tmp_path / "ranges.json"
    onnx.save(model, path)
    given = {
        "l": [{"rmin": np.array(-3.0, "float32"), "rmax": np.array(2.0, "float32")}],
        "w": [{"symmetric": True}],
        "u": [{"scale": np.array(np.float32(0.05)), "zero_point": np.array(3, np.uint8)}],
    }
    for tool, kind, reader in (
        (stock.quantize_static, stock.QuantType, Reader(model)),
        (quantize_static, QuantType, None),
    ):
        tool(
            path,
            tmp_path / f"{tool.__module__.split('.')[0]}.onnx",
            reader,
            stock.QuantFormat.QOperator,
            activation_type=kind.QUInt8,
            weight_type=kind.QUInt8,
            calibration_cache_path=cache,
            extra_options={"TensorQuantOverrides": given},
        )
    files = [onnx.load(tmp_path / f"{name}.onnx") for name in ("ortmodule_py", "onnxruntime")]
    assert_same_file(*files)


def test_types_of_16_bits_are_refused(tmp_path: Path) -> None:
    model = models.gemm()
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(RuntimeError, match="types of 8 bits, but found 16: use QDQ"):
        quantize_static(
            tmp_path / "m.onnx",
            tmp_path / "q.onnx",
            Reader(model),
            QuantFormat.QOperator,
            activation_type=QuantType.QInt16,
            verbose=False,
        )
