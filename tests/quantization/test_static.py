"""quantize_static with QDQ beside onnxruntime's: the same nodes and, from the same ranges, bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import onnxruntime.quantization as stock
import pytest
from onnx import helper, numpy_helper

from ortmodule_py import InferenceSession
from ortmodule_py.quantization import (
    CalibrationDataReader,
    CalibrationMethod,
    QuantFormat,
    QuantizationReport,
    QuantType,
    TensorsData,
    load_tensors_data,
    quantize_static,
    save_tensors_data,
)
from tests.quantization import models
from tests.quantization.test_dynamic import assert_same_file


class Reader(CalibrationDataReader, stock.CalibrationDataReader):
    def __init__(self, model: onnx.ModelProto) -> None:
        self._feeds = iter(models.feeds(model, 4))

    def get_next(self) -> dict[str, Any] | None:
        return next(self._feeds, None)


def network(opset: int = 18) -> onnx.ModelProto:
    """Operators of each rule: removed Relu, shared scales, two biases, norms, an output inside."""
    return models.build(
        [
            helper.make_node("Conv", ["x", "w", "b"], ["c"], "conv", pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["c"], ["r"], "relu"),
            helper.make_node("MaxPool", ["r"], ["m"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
            helper.make_node("ConvTranspose", ["m", "t", "b"], ["d"], "up"),
            helper.make_node("LayerNormalization", ["d", "g", "lb"], ["n"], "norm"),
            helper.make_node("Clip", ["n", "low", "high"], ["l"], "clip"),
            helper.make_node("Pad", ["l", "pads"], ["p"], "pad", mode="reflect"),
            helper.make_node("Transpose", ["p"], ["q"], "turn", perm=[0, 2, 3, 1]),
            helper.make_node("Split", ["q"], ["s1", "s2"], "split", axis=3, num_outputs=2),
            helper.make_node("Add", ["s1", "s2"], ["a"], "add"),
            helper.make_node("Mul", ["a", "scale"], ["e"], "mul"),
            helper.make_node("Concat", ["e", "s1"], ["k"], "concat", axis=3),
            helper.make_node("Sigmoid", ["k"], ["h"], "sigmoid"),
            helper.make_node("MatMul", ["h", "v"], ["f"], "product"),
            helper.make_node("ReduceMean", ["f", "axes"], ["u"], "mean", keepdims=0),
            helper.make_node("Gemm", ["u", "o", "ob"], ["z"], "head", transB=1),
            helper.make_node("Softmax", ["z"], ["y"], "softmax"),
        ],
        {"x": (models.FLOAT, ["n", 3, 8, 8])},
        {"y": (models.FLOAT, ["n", 5]), "e": (models.FLOAT, None)},
        {
            "w": models.random(4, 3, 3, 3, scale=0.3),
            "b": models.random(4),
            "t": models.random(4, 4, 2, 2, scale=0.3),
            "g": models.random(5) + 1,
            "lb": models.random(5),
            "low": np.array(-1.5, np.float32),
            "high": np.array(1.5, np.float32),
            "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64),
            "scale": models.random(2),
            "v": models.random(4, 6),
            "axes": np.array([1, 2], np.int64),
            "o": models.random(5, 6),
            "ob": models.random(5),
        },
        opset=opset,
    )


def both(
    model: onnx.ModelProto, folder: Path, **options: Any
) -> tuple[onnx.ModelProto, onnx.ModelProto, QuantizationReport]:
    """Quantized by both tools from the ranges that onnxruntime's found."""
    path, ours, theirs = (str(folder / name) for name in ("m.onnx", "ours.onnx", "stock.onnx"))
    cache = folder / "ranges.json"
    onnx.save(model, path)
    kinds = {key: options.pop(key) for key in ("activation_type", "weight_type") if key in options}
    stock.quantize_static(
        path,
        theirs,
        Reader(model),
        calibration_cache_path=cache,
        **{key: stock.QuantType[name] for key, name in kinds.items()},
        **options,
    )
    report = quantize_static(
        path,
        ours,
        calibration_cache_path=cache,
        verbose=False,
        **{key: QuantType[name] for key, name in kinds.items()},
        **options,
    )
    return onnx.load(ours), onnx.load(theirs), report


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "network": network,
    "matmul": models.matmul,
    "gemm": models.gemm,
    "conv": models.conv,
    "gather": models.gather,
    "shared": models.shared,
}
OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "uint8": {"activation_type": "QUInt8", "weight_type": "QInt8"},
    "per_channel": {"per_channel": True, "reduce_range": True},
    "symmetric": {"extra_options": {"ActivationSymmetric": True, "WeightSymmetric": True}},
    "restricted": {
        "activation_type": "QUInt8",
        "extra_options": {"ActivationRestrictedAsymmetric": True},
    },
    "forced": {"extra_options": {"ForceQuantizeNoInputCheck": True, "QuantizeBias": False}},
    "pairs": {"extra_options": {"AddQDQPairToWeight": True, "QDQKeepRemovableActivations": True}},
    "some": {
        "nodes_to_exclude": ["conv", "first", "one"],
        "extra_options": {"OpTypesToExcludeOutputQuantization": ["MatMul", "Gemm"]},
    },
}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", MODELS)
def test_file_is_that_of_stock(name: str, options: str, tmp_path: Path) -> None:
    ours, theirs, report = both(MODELS[name](), tmp_path, **OPTIONS[options])
    assert_same_file(ours, theirs)
    assert report.quantized


@pytest.mark.parametrize("name", MODELS)
def test_files_interchange(name: str, tmp_path: Path) -> None:
    """onnxruntime as the file says: its fused products saturate on processors without VNNI."""
    model = MODELS[name]()
    both(model, tmp_path, activation_type="QUInt8", weight_type="QInt8")
    plain = onnxruntime.SessionOptions()
    plain.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    for feed in models.feeds(model):
        exact = onnxruntime.InferenceSession(tmp_path / "m.onnx").run(None, feed)
        for file in ("ours.onnx", "stock.onnx"):
            here = InferenceSession(tmp_path / file).run(None, feed)
            there = onnxruntime.InferenceSession(tmp_path / file, plain).run(None, feed)
            for one, other, float32 in zip(here, there, exact, strict=True):
                scale = max(1e-3, float(np.abs(float32).max()))
                assert np.abs(one - other).max() / scale < 0.02
                assert np.abs(one - float32).max() / scale < 0.2


def test_bias_that_would_overflow_widens_the_weight(tmp_path: Path) -> None:
    model = models.build(
        [helper.make_node("Conv", ["x", "w", "b"], ["y"], "conv")],
        {"x": (models.FLOAT, [1, 2, 4, 4])},
        {"y": (models.FLOAT, [1, 3, 4, 4])},
        {
            "w": models.random(3, 2, 1, 1) * np.float32(1e-7),
            "b": np.array([30, -2, 1e-3], np.float32),
        },
    )
    for per_channel in (False, True):
        ours, theirs, _ = both(model, tmp_path, per_channel=per_channel)
        assert_same_file(ours, theirs)
        (tmp_path / "ranges.json").unlink()


@pytest.mark.parametrize("beta", [0.25, 2.0, -0.5, 0.0])
@pytest.mark.parametrize("per_channel", [False, True])
def test_factor_of_a_bias(beta: float, per_channel: bool, tmp_path: Path) -> None:
    """onnxruntime's tool writes files that add the bias itself."""
    model = models.build(
        [helper.make_node("Gemm", ["x", "w", "b"], ["y"], "head", beta=beta)],
        {"x": (models.FLOAT, ["n", 8])},
        {"y": (models.FLOAT, ["n", 8])},
        {"w": models.random(8, 8), "b": models.random(8) * 9},
    )
    ours, _, _ = both(model, tmp_path, per_channel=per_channel)
    feed = models.feeds(model)[0]
    exact = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feed)[0]
    for runtime in (onnxruntime.InferenceSession, InferenceSession):
        found = runtime(ours.SerializeToString()).run(None, feed)[0]
        assert np.abs(found - exact).max() < 0.03 * np.abs(exact).max()


def test_calibration(tmp_path: Path) -> None:
    """Ranges of our own session: near onnxruntime's, and kept in a cache that it reads."""
    model, path = network(), tmp_path / "m.onnx"
    onnx.save(model, path)
    cache = tmp_path / "ours.json"
    report = quantize_static(
        path,
        tmp_path / "ours.onnx",
        Reader(model),
        calibration_cache_path=cache,
        samples=models.feeds(model),
        verbose=False,
    )
    assert 0 < report.outputs["y"].largest < 0.2
    stock.quantize_static(
        path, tmp_path / "theirs.onnx", Reader(model), calibration_cache_path=tmp_path / "t.json"
    )
    here, there = (stock.load_tensors_data(each) for each in (cache, tmp_path / "t.json"))
    for name in here:
        for one, other in zip(here[name].range_value, there[name].range_value, strict=True):
            assert np.isclose(one, other, rtol=1e-4, atol=1e-5)
    stock.quantize_static(path, tmp_path / "theirs.onnx", calibration_cache_path=cache)


def overrides(kind: Any) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """TensorQuantOverrides by case, with either tool's QuantType."""
    number = np.float32(0.01)
    return {
        "channels": {"w": [{"axis": -4}], "o": [{"axis": 0, "reduce_range": True}], "v": [{}]},
        "ranges": {
            "c": [{"rmin": np.array(-3.0, "float32"), "rmax": np.array(2.0, "float32")}],
            "h": [{"symmetric": True}],
            "scale": [{"rmin": -0.5, "rmax": 4.0, "symmetric": False}],
            "o": [{"axis": 0, "rmin": -1.0 - i, "rmax": 1.0} for i in range(5)],
        },
        "types": {
            "f": [{"quant_type": kind.QInt16}],
            "w": [{"quant_type": kind.QUInt8}],
            "d": [{"quant_type": kind.QUInt8, "rmin": np.array(-1.0, "float32")}],
        },
        "scales": {
            "z": [{"scale": np.array(number), "zero_point": np.array(3, np.int8)}],
            "v": [{"scale": number, "zero_point": -5}],
            "w": [{"axis": 0, "scale": number * (i + 1), "zero_point": 0} for i in range(4)],
        },
        "bias": {"lb": [{"quant_type": kind.QInt16}], "ob": [{"axis": 0}]},
    }


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("case", overrides(QuantType))
def test_file_with_overrides_is_that_of_stock(case: str, per_channel: bool, tmp_path: Path) -> None:
    # Of operator set 21, as onnxruntime raises models for types of 16 bits.
    model, path, cache = network(21), tmp_path / "m.onnx", tmp_path / "ranges.json"
    onnx.save(model, path)
    for tool, kind, reader in (
        (stock.quantize_static, stock.QuantType, Reader(model)),
        (quantize_static, QuantType, None),
    ):
        tool(
            path,
            tmp_path / f"{tool.__module__.split('.')[0]}.onnx",
            reader,
            per_channel=per_channel,
            calibration_cache_path=cache,
            extra_options={"TensorQuantOverrides": overrides(kind)[case]},
        )
    ours = onnx.load(tmp_path / "ortmodule_py.onnx")
    assert_same_file(ours, onnx.load(tmp_path / "onnxruntime.onnx"))
    quantize_static(path, tmp_path / "plain.onnx", calibration_cache_path=cache, verbose=False)
    assert ours != onnx.load(tmp_path / "plain.onnx")


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ({"missing": [{"rmin": -1.0}]}, "must name tensors of the model, but found 'missing'"),
        ({"w": [{"convert": {}}]}, "must not change a value's type between its readers"),
        ({"w": [{"rmim": 1.0}]}, "did you mean 'rmin'"),
        ({"w": {"rmin": 1.0}}, "must be a list of dicts"),
        ({"w": [{"scale": 1.0}]}, "both scale and zero_point"),
        ({"w": [{"scale": 1.0, "zero_point": 0, "rmin": 1.0}]}, "beside scale"),
        ({"w": [{"axis": 0}, {"axis": 1}]}, "one axis for all channels"),
        ({"w": [{"axis": 0}, {}]}, "for 4 channels, but found 2"),
        ({"w": [{"axis": 4}]}, "one of 4 dimensions, but found 4"),
        ({"w": [{"axis": 0, "scale": 1.0, "zero_point": 0}]}, "each of 4 channels"),
        ({"w": [{"quant_type": "QInt4"}]}, "quant_type must be one of"),
        ({"c": [{"axis": 0}]}, "is no initializer"),
    ],
)
def test_wrong_overrides(given: Any, rule: str, tmp_path: Path) -> None:
    model, path = network(), tmp_path / "m.onnx"
    onnx.save(model, path)
    with pytest.raises((ValueError, RuntimeError), match=rule):
        quantize_static(
            path,
            tmp_path / "q.onnx",
            Reader(model),
            verbose=False,
            extra_options={"TensorQuantOverrides": given},
        )
    assert not (tmp_path / "q.onnx").exists()


def test_wrong_arguments(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(models.gemm(), path)
    out = tmp_path / "q.onnx"
    with pytest.raises(ValueError, match=r"QDQ or QOperator, but found QLinear"):
        quantize_static(path, out, [], "QLinear")
    with pytest.raises(ValueError, match=r"Entropy.*, but found Distribution"):
        quantize_static(path, out, [{}], calibrate_method=CalibrationMethod.Distribution)
    with pytest.raises(ValueError, match=r"Entropy.*, but found Least"):
        quantize_static(path, out, [{}], calibrate_method="Least")
    with pytest.raises(ValueError, match="calibration_data_reader"):
        quantize_static(path, out)
    with pytest.raises(ValueError, match="gave none"):
        quantize_static(path, out, [])
    with pytest.raises(ValueError, match="did you mean 'ActivationSymmetric'"):
        quantize_static(path, out, [], extra_options={"ActivationsSymmetric": True})
    with pytest.raises(ValueError, match="is not offered"):
        quantize_static(path, out, [], extra_options={"SmoothQuant": True})
    with pytest.raises(RuntimeError, match="must have activations of QUInt8"):
        quantize_static(
            path, out, models.feeds(models.gemm()), weight_type=QuantType.QUInt8, verbose=False
        )
    assert not out.exists()


def near_float(model: onnx.ModelProto, path: Path, feeds: Sequence[dict[str, Any]]) -> float:
    """The largest error of the file in both runtimes, of the largest value; onnxruntime's as it is."""
    plain = onnxruntime.SessionOptions()
    plain.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    exact = onnxruntime.InferenceSession(model.SerializeToString())
    errors = [0.0]
    for feed in feeds:
        for run in (InferenceSession(path), onnxruntime.InferenceSession(path, plain)):
            for one, other in zip(run.run(None, feed), exact.run(None, feed), strict=True):
                errors.append(float(np.abs(one - other).max() / np.abs(other).max()))
    return max(errors)


FORMATS = [QuantFormat.QDQ, QuantFormat.QOperator]


def without_scales() -> onnx.ModelProto:
    """A mask of -inf, the logarithm of 0, a bias with NaN, and products before and behind them."""
    bias = models.random(8)
    bias[3] = np.nan
    return models.build(
        [
            helper.make_node("MatMul", ["x", "w"], ["a"], "before"),
            helper.make_node("Where", ["seen", "a", "hidden"], ["s"], "mask"),
            helper.make_node("Softmax", ["s"], ["p"], "softmax"),
            helper.make_node("MatMul", ["p", "v"], ["b"], "behind"),
            helper.make_node("Gemm", ["b", "v", "bias"], ["g"], "nan"),
            helper.make_node("Log", ["none"], ["l"], "log"),
            helper.make_node("Mul", ["l", "none"], ["m"], "mul"),
            helper.make_node("IsNaN", ["m"], ["unknown"], "unknown"),
            helper.make_node("Where", ["unknown", "b", "g"], ["y"], "choose"),
        ],
        {"x": (models.FLOAT, ["n", 8])},
        {"y": (models.FLOAT, ["n", 8])},
        {
            "w": models.random(8, 8),
            "v": models.random(8, 8, seed=1),
            "seen": np.arange(8) % 3 > 0,
            "hidden": np.array(-np.inf, np.float32),
            "bias": bias,
            "none": np.zeros(8, np.float32),
        },
    )


@pytest.mark.parametrize("forced", [False, True])
@pytest.mark.parametrize("quant_format", FORMATS)
def test_what_has_no_scale_stays_float32(
    quant_format: QuantFormat, forced: bool, tmp_path: Path
) -> None:
    """onnxruntime's tool gives it the scale infinity or NaN."""
    model, path = without_scales(), tmp_path / "ours.onnx"
    report = quantize_static(
        model,
        path,
        models.feeds(model, 4),
        quant_format,
        activation_type=QuantType.QUInt8,
        extra_options={"ForceQuantizeNoInputCheck": forced},
        verbose=False,
    )
    assert {"before", "behind"} <= {node.name for node in report.quantized}
    if quant_format is QuantFormat.QDQ:
        notes = "\n".join(report.notes)
        assert "'bias' stays float32: it holds NaN or infinity" in notes
        assert "'m' stays float32: its range is" in notes
        assert ("'hidden' stays float32: it holds NaN or infinity" in notes) == forced
    assert near_float(model, path, models.feeds(model)) < 0.1


def test_ranges_of_some_values(tmp_path: Path) -> None:
    """A cache may lack values that the data did not reach; that of another model lacks all."""
    model, cache = models.gemm(), tmp_path / "ranges.json"
    feeds = models.feeds(model)
    quantize_static(model, tmp_path / "q.onnx", feeds, calibration_cache_path=cache, verbose=False)
    known = load_tensors_data(cache)
    some = {name: each for name, each in known.items() if name not in ("r", "z")}
    save_tensors_data(TensorsData(CalibrationMethod.MinMax, some), cache)
    report = quantize_static(
        model, tmp_path / "q.onnx", calibration_cache_path=cache, verbose=False
    )
    assert "'z' stays float32: no calibrated range" in report.notes
    assert near_float(model, tmp_path / "q.onnx", feeds) < 0.1
    save_tensors_data(TensorsData(CalibrationMethod.MinMax, {"h2": known["h"]}), cache)
    for quant_format in FORMATS:
        with pytest.raises(RuntimeError, match="ranges must be of the model's values, but found"):
            quantize_static(
                model,
                tmp_path / "other.onnx",
                quant_format=quant_format,
                activation_type=QuantType.QUInt8,
                calibration_cache_path=cache,
            )
    assert not (tmp_path / "other.onnx").exists()


def limited(*nodes: onnx.NodeProto) -> onnx.ModelProto:
    """A convolution, nodes from c to e that limit its result, and a second one."""
    return models.build(
        [
            helper.make_node("Conv", ["x", "w"], ["c"], "conv"),
            *nodes,
            helper.make_node("Conv", ["e", "v"], ["y"], "next"),
        ],
        {"x": (models.FLOAT, [1, 2, 6, 6])},
        {"y": (models.FLOAT, [1, 2, 4, 4])},
        {
            "w": models.random(3, 2, 3, 3),
            "v": models.random(2, 3, 1, 1),
            "low": np.array(-1.0, np.float32),
            "zero": np.array(0.0, np.float32),
            "six": np.array(6.0, np.float32),
        },
    )


RELU = helper.make_node("Relu", ["c"], ["e"], "relu")


@pytest.mark.parametrize("quant_format", FORMATS)
@pytest.mark.parametrize(
    ("nodes", "extra"),
    [
        (
            [
                helper.make_node("Relu", ["c"], ["d"], "relu"),
                helper.make_node("Clip", ["d", "zero", "six"], ["e"], "clip"),
            ],
            {},
        ),
        (
            [
                helper.make_node("Relu", ["c"], ["d"], "relu"),
                helper.make_node("Abs", ["d"], ["e"], "abs"),
            ],
            {"OpTypesToExcludeOutputQuantization": ["Relu"]},
        ),
        ([RELU], {"CalibTensorRangeSymmetric": True}),
        ([RELU], {"TensorQuantOverrides": {"e": [{"symmetric": True}]}}),
        (
            [helper.make_node("Clip", ["c", "low", "zero"], ["e"], "clip")],
            {"MinimumRealRange": 3.0},
        ),
    ],
    ids=["chain", "without_output", "symmetric_range", "symmetric_override", "widened"],
)
def test_limits_of_activations_stay(
    nodes: list[onnx.NodeProto], extra: dict[str, Any], quant_format: QuantFormat, tmp_path: Path
) -> None:
    """A Relu or Clip is removed only where the integers of its result end where it does."""
    model = limited(*nodes)
    for options in ({name: extra[name] for name in extra if name.startswith("Calib")}, extra):
        quantize_static(
            model,
            tmp_path / "q.onnx",
            models.feeds(model, 4),
            quant_format,
            activation_type=QuantType.QUInt8,
            extra_options=options,
            calibration_cache_path=tmp_path / "ranges.json",  # then of all results
            verbose=False,
        )
    assert near_float(model, tmp_path / "q.onnx", models.feeds(model)) < 0.06


@pytest.mark.parametrize("quant_format", FORMATS)
def test_shapes_that_have_no_channels(quant_format: QuantFormat, tmp_path: Path) -> None:
    """Biases that are not one number for each channel, and factors that are no matrices."""
    model = models.build(
        [
            helper.make_node("Gemm", ["x", "w", "rows"], ["a"], "rows"),
            helper.make_node("Gemm", ["a", "w", "one"], ["b"], "one"),
            helper.make_node("MatMul", ["b", "stack"], ["c"], "stack"),
            helper.make_node("MatMul", ["c", "vector"], ["d"], "vector"),
            helper.make_node("Reshape", ["c", "image"], ["i"], "reshape"),
            helper.make_node("ConvTranspose", ["i", "k", "kb"], ["y"], "groups", group=2),
        ],
        {"x": (models.FLOAT, [2, 8])},
        {"d": (models.FLOAT, [3, 2]), "y": (models.FLOAT, [1, 4, 5, 5])},
        {
            "w": models.random(8, 8) * np.logspace(-2, 0, 8, dtype=np.float32),
            "rows": models.random(2, 8),
            "one": models.random(1) * 9,
            "stack": models.random(3, 8, 8),
            "vector": models.random(8),
            "image": np.array([1, 4, 4, 3], np.int64),
            "k": models.random(4, 2, 2, 3),
            "kb": models.random(4),
        },
    )
    report = quantize_static(
        model,
        tmp_path / "q.onnx",
        models.feeds(model, 4),
        quant_format,
        per_channel=True,
        activation_type=QuantType.QUInt8,
        verbose=False,
    )
    assert {"rows", "stack", "vector"} <= {node.name for node in report.quantized}
    assert near_float(model, tmp_path / "q.onnx", models.feeds(model)) < 0.06


@pytest.mark.parametrize("opset", [17, 19])
def test_half_precision(opset: int, tmp_path: Path) -> None:
    """DequantizeLinear has float16 since operator set 19; onnxruntime's tool writes it before, too."""
    sizes = {"w": (8, 8), "b": (8,)}
    model = models.build(
        [
            helper.make_node("Gemm", ["x", "w", "b"], ["h"], "one"),
            helper.make_node("Relu", ["h"], ["r"], "relu"),
            helper.make_node("MatMul", ["r", "w"], ["y"], "two"),
        ],
        {"x": (onnx.TensorProto.FLOAT16, [4, 8])},
        {"y": (onnx.TensorProto.FLOAT16, [4, 8])},
        {name: models.random(*size).astype("float16") for name, size in sizes.items()},
        opset=opset,
    )
    feeds = [{"x": models.random(4, 8, seed=seed).astype("float16")} for seed in range(3)]
    report = quantize_static(model, tmp_path / "q.onnx", feeds, per_channel=True, verbose=False)
    assert len(report.quantized) == 3
    assert near_float(model, tmp_path / "q.onnx", feeds) < 0.06


@pytest.mark.parametrize("quant_format", FORMATS)
def test_results_of_subgraphs(quant_format: QuantFormat, tmp_path: Path) -> None:
    """Their types are those that the bodies of Loop and If make."""
    true = numpy_helper.from_array(np.array(True))
    body = helper.make_graph(
        [
            helper.make_node("Tanh", ["state"], ["next"]),
            helper.make_node("Constant", [], ["again"], value=true),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", models.INT64, []),
            helper.make_tensor_value_info("go", onnx.TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", models.FLOAT, [2, 8]),
        ],
        [
            helper.make_tensor_value_info("again", onnx.TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", models.FLOAT, None),
        ],
    )
    choice = {
        name: helper.make_graph(
            [helper.make_node(op, ["l"], [name])],
            name,
            [],
            [onnx.ValueInfoProto(name=name)],
        )
        for name, op in (("then_branch", "Neg"), ("else_branch", "Abs"))
    }
    model = models.build(
        [
            helper.make_node("Loop", ["count", "", "x"], ["l"], "loop", body=body),
            helper.make_node("If", ["flag"], ["f"], "if", **choice),
            helper.make_node("MatMul", ["l", "w"], ["a"], "of_loop"),
            helper.make_node("MatMul", ["f", "w"], ["y"], "of_if"),
        ],
        {"x": (models.FLOAT, [2, 8]), "flag": (onnx.TensorProto.BOOL, [])},
        {"a": (models.FLOAT, [2, 8]), "y": (models.FLOAT, [2, 8])},
        {"count": np.array(2), "w": models.random(8, 8)},
    )
    report = quantize_static(
        model,
        tmp_path / "q.onnx",
        models.feeds(model, 4),
        quant_format,
        activation_type=QuantType.QUInt8,
        verbose=False,
    )
    assert {node.name for node in report.quantized} == {"of_loop", "of_if"}
    names = {node.name for node in onnx.load(tmp_path / "q.onnx").graph.node}
    assert {"l_QuantizeLinear", "f_QuantizeLinear"} <= names
