"""Ranges by each method beside onnxruntime's, from the same values; and onnxruntime's own modules."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime.quantization as stock
import pytest
from onnx import helper
from onnxruntime.quantization import calibrate as stock_calibrate

import ortmodule_py.onnxruntime
import ortmodule_py.quantization as ours
from ortmodule_py.onnxruntime.quantization.preprocess import main as preprocess
from tests.quantization import models

METHODS = ["Percentile", "Entropy"]
Array = np.ndarray[Any, Any]


class Reader(ours.CalibrationDataReader, stock.CalibrationDataReader):
    def __init__(self, arrays: list[Array]) -> None:
        self._feeds: Iterator[dict[str, Any]] = iter([{"x": array} for array in arrays])

    def get_next(self) -> dict[str, Any] | None:
        return next(self._feeds, None)


def folded() -> onnx.ModelProto:
    """No arithmetic in which two runtimes round differently: x, -x and |x|."""
    nodes = [
        helper.make_node("Neg", ["x"], ["n"], "neg"),
        helper.make_node("Abs", ["n"], ["y"], "abs"),
        helper.make_node("Shape", ["y"], ["s"], "shape"),
    ]
    outputs = {"y": (models.FLOAT, ["n"]), "s": (onnx.TensorProto.INT64, [1])}
    return models.build(nodes, {"x": (models.FLOAT, ["n"])}, outputs, {}, opset=17)


def chunks(seed: int = 0) -> list[list[Array]]:
    """Feeds of three calls: all zero, then larger ones, then smaller ones; of rare outliers."""
    random = np.random.default_rng(seed)
    wide = [random.standard_t(2, 700).astype("float32") for _ in range(3)]
    return [[np.zeros(9, "float32")], wide, [random.standard_normal(50).astype("float32")]]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"symmetric": True, "num_bins": 256},
        {"symmetric": False, "num_bins": 501},
        {"percentile": 97.5},
        {"num_quantized_bins": 64, "num_bins": 200},
    ],
    ids=str,
)
@pytest.mark.parametrize("first", [0, 1])
def test_histograms_are_those_of_onnxruntime(
    method: str, options: dict[str, Any], first: int, tmp_path: Path
) -> None:
    if ("percentile" if method == "Entropy" else "num_quantized_bins") in options:
        pytest.skip("an option of the other method")
    if method == "Percentile" and options.get("symmetric", True) and first == 0:
        pytest.skip("onnxruntime counts magnitudes of zeros between -0.5 and 0.5")
    path = tmp_path / "m.onnx"
    onnx.save(folded(), path)
    found = {}
    for package in (stock, ours):
        calibrater = package.create_calibrator(
            path,
            ["Neg", "Abs"],
            tmp_path / "augmented.onnx",
            package.CalibrationMethod[method],
            extra_options=options,
        )
        for arrays in chunks()[first:]:
            calibrater.collect_data(Reader(arrays))
        found[package] = calibrater.compute_data()
    assert set(found[ours].keys()) == set(found[stock].keys()) == {"x", "n", "y"}
    for name, here in found[ours].items():
        there = found[stock][name]
        np.testing.assert_array_equal(here.range_value, there.range_value)
        assert here.hist.sum() == sum(array.size for arrays in chunks()[first:] for array in arrays)
        if method == "Entropy":  # of the other method onnxruntime returns two counts
            np.testing.assert_array_equal(here.hist, there.hist)
            np.testing.assert_allclose(here.hist_edges, there.bins, rtol=1e-6)


@pytest.mark.parametrize("options", [{}, {"scenario": "p3", "num_bins": 700}], ids=str)
def test_distributions_are_those_of_onnxruntime(options: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(folded(), path)
    found = {}
    for package in (stock, ours):
        calibrater = package.create_calibrator(
            path,
            ["Neg", "Abs"],
            tmp_path / "augmented.onnx",
            package.CalibrationMethod.Distribution,
            extra_options=options,
        )
        for arrays in chunks():
            calibrater.collect_data(Reader(arrays))
        found[package] = calibrater.compute_data()
    assert set(found[ours].keys()) == set(found[stock].keys()) == {"x", "n", "y"}
    for name, here in found[ours].items():
        there = found[stock][name]
        np.testing.assert_array_equal(here.range_value, there.range_value)
        np.testing.assert_array_equal(here.hist, there.hist)
        np.testing.assert_allclose(here.avg_std, there.avg_std, rtol=1e-5, atol=1e-7)
    with pytest.raises(ValueError, match="at least 512, but found 100"):
        ours.create_calibrator(
            path,
            calibrate_method=ours.CalibrationMethod.Distribution,
            extra_options={"num_bins": 100},
        ).compute_data()
    with pytest.raises(ValueError, match="scenario must be"):
        ours.create_calibrator(
            path,
            calibrate_method=ours.CalibrationMethod.Distribution,
            extra_options={"scenario": "p2"},
        )


@pytest.mark.parametrize("method", METHODS)
def test_files_of_other_methods(method: str, tmp_path: Path) -> None:
    """Static quantization by each method, and its cache, which onnxruntime reads."""
    model = models.gemm()
    path, cache = tmp_path / "m.onnx", tmp_path / "new" / "ranges.json"
    onnx.save(model, path)
    report = ours.quantize_static(
        path,
        tmp_path / "ours.onnx",
        models.feeds(model, 4),
        calibrate_method=ours.CalibrationMethod[method],
        calibration_cache_path=cache,
        extra_options={"CalibPercentile": 99.0} if method == "Percentile" else None,
        samples=models.feeds(model),
        verbose=False,
    )
    assert all(error.relative < 0.2 for error in report.outputs.values())
    here, there = ours.load_tensors_data(cache), stock.load_tensors_data(cache)
    assert here.calibration_method.name == there.calibration_method.name == method
    for name in here:
        np.testing.assert_array_equal(here[name].range_value, there[name].range_value)
        np.testing.assert_array_equal(here[name].hist_edges, there[name].hist_edges)
    stock.save_tensors_data(there, cache)
    again = ours.load_tensors_data(cache)
    np.testing.assert_array_equal(again["x"].hist, here["x"].hist)


@pytest.mark.parametrize("method", [*METHODS, "Distribution"])
def test_data_without_bins_have_ends(method: str, tmp_path: Path) -> None:
    """Masks of float32's lowest number and of infinity, with which onnxruntime's tool fails."""
    path = tmp_path / "m.onnx"
    onnx.save(folded(), path)
    lowest = np.finfo(np.float32).min
    for values, later in (([lowest, 0, 1], [2.0]), ([-np.inf, 1], [3.0]), ([np.nan], [1.0, 2.0])):
        calibrater = ours.create_calibrator(
            path, ["Neg", "Abs"], calibrate_method=ours.CalibrationMethod[method]
        )
        for each in (values, later):
            calibrater.collect_data(Reader([np.array(each, "float32")]))
        found = calibrater.compute_data()
        all_values = np.array([*values, *later], "float32")
        expected = np.fmin.reduce(all_values), np.fmax.reduce(all_values)
        np.testing.assert_allclose(found["x"].range_value, expected, rtol=1e-3)
        ours.save_tensors_data(found, tmp_path / "ranges.json")
        there = stock.load_tensors_data(tmp_path / "ranges.json")["x"]
        np.testing.assert_array_equal(there.range_value, found["x"].range_value)


def test_calibraters_have_the_parameters_of_onnxruntime() -> None:
    names = ["create_calibrator", "CalibraterBase", "MinMaxCalibrater"]
    for name in [*names, "PercentileCalibrater", "EntropyCalibrater", "DistributionCalibrater"]:
        theirs = inspect.signature(getattr(stock_calibrate, name)).parameters
        own = inspect.signature(getattr(ours, name)).parameters
        assert list(own)[: len(theirs)] == list(theirs), name
        for key, parameter in theirs.items():
            if key != "extra_options":
                assert str(own[key].default) == str(parameter.default), (name, key)


def test_all_floats_are_calibrated_without_a_list(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(folded(), path)
    calibrater = ours.create_calibrator(path)
    calibrater.collect_data(Reader([np.array([-2, 1], "float32")]))
    found = calibrater.compute_data()
    ends = {name: tuple(map(float, each.range_value)) for name, each in found.items()}
    assert ends == {"x": (-2, 1), "n": (-1, 2), "y": (1, 2)}


def test_wrong_arguments_of_calibraters(tmp_path: Path) -> None:
    model = folded()
    with pytest.raises(ValueError, match="from 0 to 100, but found 101"):
        ours.PercentileCalibrater(model, percentile=101)
    with pytest.raises(ValueError, match="per_channel must be False"):
        ours.create_calibrator(model, extra_options={"per_channel": True})
    with pytest.raises(ValueError, match=r"options of Entropy calibration: .*percentile"):
        ours.create_calibrator(
            model, calibrate_method=ours.CalibrationMethod.Entropy, extra_options={"percentile": 9}
        )
    with pytest.raises(ValueError, match="must be called before"):
        ours.EntropyCalibrater(model).compute_data()
    with pytest.raises(ValueError, match="facts must be among"):
        ours.TensorData(least=1)
    with pytest.raises(TypeError, match="range of 'x' must be"):
        ours.TensorsData(ours.CalibrationMethod.MinMax, {"x": 3})


def test_configurations(tmp_path: Path) -> None:
    model, path = models.gemm(), tmp_path / "m.onnx"
    onnx.save(model, path)
    command = ["--input", str(path), "--output", str(tmp_path / "prepared.onnx")]
    assert preprocess([*command, "--skip_symbolic_shape", "True", "--auto_merge"]) == 0
    with pytest.raises(SystemExit):
        preprocess([*command, "--skip_symbolic_shapes", "True", "--auto_marge"])
    assert preprocess(["--input", str(tmp_path), "--output", str(tmp_path / "p.onnx")]) == 1
    static = ours.StaticQuantConfig(models.feeds(model), per_channel=True)
    ours.quantize(tmp_path / "prepared.onnx", tmp_path / "static.onnx", static)
    ours.quantize(path, tmp_path / "dynamic.onnx", ours.DynamicQuantConfig())
    ours.quantize_static(path, tmp_path / "s.onnx", models.feeds(model), per_channel=True)
    ours.quantize_dynamic(path, tmp_path / "d.onnx")
    for one, other in (("static", "s"), ("dynamic", "d")):
        assert (tmp_path / f"{one}.onnx").read_bytes() == (tmp_path / f"{other}.onnx").read_bytes()
    with pytest.raises(TypeError, match="must be a StaticQuantConfig or a DynamicQuantConfig"):
        ours.quantize(path, tmp_path / "q.onnx", 3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must be given"):
        ours.quant_pre_process(path)


def test_modules_that_scripts_import_from() -> None:
    script = (
        "import sys, ortmodule_py.onnxruntime\n"
        "sys.modules['onnxruntime'] = ortmodule_py.onnxruntime\n"
        "from onnxruntime.quantization.calibrate import CalibrationDataReader, CalibrationMethod\n"
        "from onnxruntime.quantization.quant_utils import QuantFormat, QuantType\n"
        "from onnxruntime.quantization.quantize import quantize_static\n"
        "from onnxruntime.quantization.shape_inference import quant_pre_process\n"
        "import onnxruntime.quantization, ortmodule_py.quantization as ours\n"
        "assert QuantType is ours.QuantType and quantize_static is ours.quantize_static\n"
        "assert onnxruntime.quantization.quantize is ours.quantize\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("excluded", [None, ["conv"], lambda _, node: node.op_type == "Gemm"])
def test_qdq_configuration_is_that_of_onnxruntime(excluded: Any, tmp_path: Path) -> None:
    model, path = models.conv(), tmp_path / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, location="m.data", size_threshold=0)
    found = {}
    for package in (stock, ours):
        config = package.get_qdq_config(
            path,
            None,
            calibrate_args={"moving_average": True},
            weight_type=package.QuantType.QUInt8,
            min_real_range=1e-4,
            tensor_quant_overrides={"x": [{"rmin": -9.0, "rmax": 9.0}]},
            nodes_to_exclude=excluded,
            extra_options={"WeightSymmetric": True},
        )
        config.op_types_to_quantize = sorted(config.op_types_to_quantize)
        found[package] = {key: str(value) for key, value in vars(config).items()}
    assert found[ours] == found[stock]
    assert found[ours]["use_external_data_format"] == "True"
    config = ours.get_qdq_config(path, models.feeds(model), nodes_to_exclude=excluded)
    ours.quantize(path, tmp_path / "q.onnx", config)
    kinds = [node.op_type for node in onnx.load(tmp_path / "q.onnx").graph.node]
    assert kinds.count("QuantizeLinear") > 3
    plain, theirs = vars(ours.DynamicQuantConfig()), vars(stock.DynamicQuantConfig())
    assert {key: str(plain[key]) for key in plain} == {key: str(theirs[key]) for key in plain}


@pytest.mark.parametrize("package", ["onnxruntime", "ortmodule_py.onnxruntime"])
@pytest.mark.parametrize(
    ("module", "reason"),
    [
        ("quantization.matmul_nbits_quantizer", "onnxruntime's tool writes them"),
        ("quantization.execution_providers.qnn", "call get_qdq_config"),
        ("quantization.operators.conv", "call quantize_static or quantize_dynamic"),
        ("transformers.float16", "call ortmodule_py.convert_precision.convert_precision"),
        ("transformers.optimizer", "sessions fuse operators themselves"),
        ("tools.onnx_model_utils", "they prepare models"),
    ],
)
def test_modules_that_are_left_out(package: str, module: str, reason: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in sys.modules if name.split(".")[0] == "onnxruntime"]:
            patch.delitem(sys.modules, name)
        patch.setitem(sys.modules, "onnxruntime", ortmodule_py.onnxruntime)
        with pytest.raises(ModuleNotFoundError, match=f" is left out: .*{reason}"):
            importlib.import_module(f"{package}.{module}")
    # The other package is not ours.
    importlib.import_module("onnxruntime.quantization.onnx_model")
