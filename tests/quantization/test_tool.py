"""The tool around quantization: files of strangers, memory, reports, choices, the command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from ortmodule_py import InferenceSession, _inference
from ortmodule_py.convert_precision import convert_precision
from ortmodule_py.inference import InvalidProtobuf, NoSuchFile
from ortmodule_py.quantization import (
    QuantizationReport,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from ortmodule_py.quantization.__main__ import main
from ortmodule_py.quantization.model_files import output_error
from tests.quantization import models


def strange_model() -> onnx.ModelProto:
    """Everything that a file may hold beside what an engine reads."""
    model = models.matmul()
    graph, node = model.graph, model.graph.node[0]
    model.doc_string, model.domain, model.model_version = "about it", "org.example", 7
    model.producer_name, model.producer_version = "someone", "1.2"
    graph.doc_string, node.doc_string = "the graph", "the node"
    graph.input[0].doc_string = "an input"
    graph.input[0].type.denotation = "IMAGE"
    graph.input[0].type.tensor_type.shape.dim[1].denotation = "DATA_CHANNEL"
    for entries in (model.metadata_props, graph.metadata_props, node.metadata_props):
        entries.add(key="k", value="v")
    note = graph.quantization_annotation.add(tensor_name="w")
    note.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="s")
    graph.value_info.append(helper.make_tensor_value_info("a", models.FLOAT, ["n", 3, 16]))
    for kind in (TensorProto.UINT16, TensorProto.FLOAT8E4M3FN, TensorProto.UINT4):
        tensor = helper.make_tensor(f"kind{kind}", kind, [3], [1, 2, 3])
        tensor.doc_string = "a tensor"
        graph.initializer.append(tensor)
        graph.output.append(helper.make_tensor_value_info(f"kind{kind}", kind, [3]))
    graph.sparse_initializer.append(
        helper.make_sparse_tensor(
            numpy_helper.from_array(np.array([2.0], np.float32), "sparse"),
            numpy_helper.from_array(np.array([5], np.int64), "at"),
            [100],
        )
    )
    graph.output.append(helper.make_tensor_value_info("sparse", models.FLOAT, [100]))
    function = helper.make_function(
        "org.example",
        "Twice",
        ["x"],
        ["y"],
        [helper.make_node("Add", ["x", "x"], ["y"])],
        [helper.make_opsetid("", 17)],
    )
    function.doc_string = "a function"
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("org.example", 1))
    graph.node.append(
        helper.make_node("Twice", ["y"], ["z"], domain="org.example", names=["p", "q"])
    )
    return model


def without_data(model: onnx.ModelProto) -> dict[str, Any]:
    """All but what is written differently: raw data instead of typed fields, order."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for tensor in copy.graph.initializer:
        data = numpy_helper.to_array(tensor).tobytes()
        for field in ("float_data", "int32_data", "int64_data", "raw_data"):
            tensor.ClearField(field)
        tensor.raw_data = data
    return {field.name: value for field, value in copy.ListFields()}


def test_reading_and_writing_keeps_everything(tmp_path: Path) -> None:
    model = strange_model()
    path = tmp_path / "m.onnx"
    _inference.Model(model.SerializeToString()).write(str(path), 2**30)
    assert without_data(onnx.load(path)) == without_data(model)
    # With the data beside the model.
    _inference.Model(model.SerializeToString()).write(str(path), 0)
    assert (tmp_path / "m.onnx.data").exists()
    loaded = onnx.load(path)
    for tensor in loaded.graph.initializer:
        tensor.ClearField("external_data")
        tensor.ClearField("data_location")
    assert without_data(loaded) == without_data(model)


def test_quantizing_keeps_everything_else(tmp_path: Path) -> None:
    model = strange_model()
    report = quantize_dynamic(model, tmp_path / "q.onnx", verbose=False)
    assert len(report.quantized) >= 3
    before, after = without_data(model), without_data(onnx.load(tmp_path / "q.onnx"))
    for name in ("doc_string", "domain", "model_version", "metadata_props", "functions"):
        assert before[name] == after[name]
    graph = after["graph"]
    assert graph.doc_string == "the graph" and graph.sparse_initializer[0].dims == [100]
    assert [v.name for v in graph.output] == [v.name for v in model.graph.output]


_PEAK = """
import resource, sys
from ortmodule_py.quantization import quantize_dynamic
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
before = resident()
open("/proc/self/clear_refs", "w").write("5")
quantize_dynamic(sys.argv[1], sys.argv[2], use_external_data_format=True, verbose=False)
peak = next(l for l in open("/proc/self/status") if l.startswith("VmHWM")).split()[1]
print(int(peak) * 1024 - before)
"""


def test_large_models_pass_in_pieces(tmp_path: Path) -> None:
    """192 MiB of weights, 64 MiB the largest: at most one quantized weight and some pieces."""
    rows, columns, count = 2048, 4096, 4
    weights = {f"w{i}": models.random(rows, columns, seed=i) for i in range(count)}
    weights["table"] = models.random(4 * rows, 2 * columns)
    nodes = [helper.make_node("Gather", ["table", "ids"], ["e"], "lookup")]
    nodes += [
        helper.make_node("Gemm", ["x", f"w{i}"], [f"y{i}"], f"g{i}", transB=1) for i in range(count)
    ]
    outputs = {f"y{i}": (models.FLOAT, [1, rows]) for i in range(count)}
    model = models.build(
        nodes,
        {"x": (models.FLOAT, [1, columns]), "ids": (models.INT64, [1])},
        {**outputs, "e": (models.FLOAT, [1, 2 * columns])},
        weights,
    )
    path, out = tmp_path / "m.onnx", tmp_path / "q.onnx"
    onnx.save(model, path, save_as_external_data=True, location="m.data")
    total = sum(array.nbytes for array in weights.values())
    result = subprocess.run(
        [sys.executable, "-c", _PEAK, str(path), str(out)], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    largest = weights["w0"].size
    assert int(result.stdout) < largest + (24 << 20) < total / 4
    written = onnx.load(out)
    quantized = {t.name: numpy_helper.to_array(t) for t in written.graph.initializer}
    scale = np.abs(weights["w1"]).max() / np.float32(127)
    expected = np.clip(np.rint(weights["w1"].T / scale), -128, 127).astype(np.int8)
    assert (np.abs(quantized["w1_Transposed_quantized"] - expected) <= 1).all()
    assert quantized["table_quantized"].dtype == np.uint8


def test_report_says_what_it_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, path, out = models.matmul(), tmp_path / "m.onnx", tmp_path / "q.onnx"
    onnx.save(model, path)
    report = quantize_dynamic(path, out, samples=models.feeds(model))
    assert report.float_bytes == path.stat().st_size
    assert report.quantized_bytes == out.stat().st_size
    first = next(node for node in report.nodes if node.name == "first")
    weight = models.random(16, 16)
    stored = {t.name: numpy_helper.to_array(t) for t in onnx.load(out).graph.initializer}
    error = weight - stored["w_quantized"].astype(np.float32) * stored["w_scale"]
    assert np.isclose(first.weights[0].largest_error, np.abs(error).max(), rtol=1e-5)
    relative = np.linalg.norm(error) / np.linalg.norm(weight)
    assert np.isclose(first.weights[0].relative_error, relative, rtol=1e-5)
    (feeds, here, there) = (models.feeds(model), InferenceSession(path), InferenceSession(out))
    largest = max(
        float(np.abs(here.run(None, f)[0] - there.run(None, f)[0]).max() / np.abs(one).max())
        for f in feeds
        for one in here.run(None, f)
    )
    assert np.isclose(report.outputs["y"].largest, largest, rtol=1e-4)
    text = capsys.readouterr().out
    assert text == f"{report}\n"
    assert "quantized 3 of 4 nodes" in text and "its second operand is no constant" in text
    assert f"largest error {largest:.2%}" in text


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [(400, 100, "4.00x smaller"), (100, 160, "1.60x larger"), (64, 64, "the same size")],
)
def test_report_says_which_file_is_larger(before: int, after: int, change: str) -> None:
    assert f"MiB ({change})" in str(QuantizationReport(before, after, []))


def test_choice_takes_what_is_fast_and_exact(tmp_path: Path) -> None:
    """With a bound of nothing all stays float32; without a bound only what is faster changes."""
    model, path, out = models.gemm(), tmp_path / "m.onnx", tmp_path / "q.onnx"
    onnx.save(model, path)
    feeds = models.feeds(model)
    report = quantize_dynamic(
        path, out, choose="faster", samples=feeds, max_error=0.0, verbose=False
    )
    assert not report.quantized
    notes = {node.name: node.note for node in report.kept}
    assert "beyond 0.00%" in notes["one"] and "alpha" in notes["scaled"]
    for one, other in zip(
        InferenceSession(path).run(None, feeds[0]),
        InferenceSession(out).run(None, feeds[0]),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)
    report = quantize_dynamic(path, out, choose="faster", samples=feeds, verbose=False)
    for node in report.nodes:
        assert node.note
        if node.error is not None and node.speedup is not None and node.quantized:
            assert node.error <= 0.02 and node.speedup > 1.0
    assert report.speedup is not None
    assert not report.quantized or report.speedup >= 1.0
    with pytest.raises(ValueError, match="needs samples"):
        quantize_dynamic(path, out, choose="faster")
    with pytest.raises(ValueError, match="'faster', but found 'smaller'"):
        quantize_dynamic(path, out, choose="smaller")


def test_choice_by_measurements(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What decides are the measured times: a machine on which integers are three times faster."""
    from ortmodule_py.quantization import choose

    def timed(one: Any, other: Any) -> tuple[float, float]:
        return 3e-5, 1e-5

    monkeypatch.setattr(choose, "_times", timed)
    monkeypatch.setattr(choose, "_speedup", lambda *_: 2.0)
    model, path, out = models.conv(), tmp_path / "m.onnx", tmp_path / "q.onnx"
    onnx.save(model, path)
    feeds = models.feeds(model)
    report = quantize_dynamic(
        path, out, choose="faster", samples=feeds, max_error=0.5, verbose=False
    )
    assert {node.name for node in report.quantized} == {"conv", "deep", "head"}
    assert all(node.speedup == pytest.approx(3.0) for node in report.quantized)
    worst = max(node.error or 0.0 for node in report.quantized)
    report = quantize_dynamic(
        path, out, choose="faster", samples=feeds, max_error=worst * 0.999, verbose=False
    )
    assert len(report.quantized) < 3
    monkeypatch.setattr(choose, "_speedup", lambda *_: 0.9)
    report = quantize_dynamic(
        path, out, choose="faster", samples=feeds, max_error=0.5, verbose=False
    )
    assert not report.quantized
    assert "not faster" in " ".join(node.note for node in report.kept)


def test_arguments(tmp_path: Path) -> None:
    path, out = tmp_path / "m.onnx", tmp_path / "q.onnx"
    onnx.save(models.gemm(), path)
    with pytest.raises(NoSuchFile, match=r"must be a file, but found .*nothing.onnx"):
        quantize_dynamic(tmp_path / "nothing.onnx", out)
    with pytest.raises(ValueError, match="weight_type must be one of"):
        quantize_dynamic(path, out, weight_type=QuantType.QInt16)
    with pytest.raises(ValueError, match="did you mean 'WeightSymmetric'"):
        quantize_dynamic(path, out, extra_options={"WeightsSymmetric": True})
    (tmp_path / "bad.onnx").write_bytes(b"\x08\x07no model")
    with pytest.raises(InvalidProtobuf):
        quantize_dynamic(tmp_path / "bad.onnx", out)
    assert not out.exists()
    # Types by name or of onnxruntime, models as bytes or messages.
    import onnxruntime.quantization as stock

    sizes = {
        quantize_dynamic(model, out, weight_type=kind, verbose=False).quantized_bytes
        for model in (path, str(path), path.read_bytes(), models.gemm())
        for kind in ("QUInt8", QuantType.QUInt8, stock.QuantType.QUInt8)
    }
    assert len(sizes) == 1


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, path, out = models.conv(), tmp_path / "m.onnx", tmp_path / "q.onnx"
    onnx.save(model, path)
    np.savez(tmp_path / "feed.npz", **models.feeds(model)[0])
    arguments = [str(path), str(out), "--weight-type", "QUInt8", "--exclude", "deep"]
    assert main([*arguments, "--samples", str(tmp_path / "feed.npz")]) == 0
    text = capsys.readouterr().out
    assert "quantized 2 of 3 nodes" in text and "deep (Conv): not asked for" in text
    kinds = [node.op_type for node in onnx.load(out).graph.node]
    assert kinds.count("ConvInteger") == 1 and kinds.count("Conv") == 1
    assert main([str(tmp_path / "nothing.onnx"), str(out)]) == 1
    assert "must be a file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("tools", "arguments", "rule"),
    [
        ("ds", {"op_types_to_quantize": "MatMul"}, "op_types_to_quantize must be a list of names"),
        ("ds", {"nodes_to_exclude": "one"}, "nodes_to_exclude must be a list of names"),
        ("ds", {"extra_options": {"ActivationSymmetric": "yes"}}, "must be like False, but found"),
        ("ds", {"extra_options": {"MinimumRealRange": "x"}}, "must be a number, but found 'x'"),
        (
            "s",
            {"extra_options": {"OpTypesToExcludeOutputQuantization": "Gemm"}},
            "'OpTypesToExcludeOutputQuantization' must be a list of names, but found 'Gemm'",
        ),
        (
            "s",
            {"calibration_cache_path": Path(__file__).parent},
            "must be a calibration cache, but is no file",
        ),
        ("s", {"calibration_cache_path": __file__}, "calibration cache in JSON, but found: "),
    ],
    ids=range(7),
)
def test_arguments_of_other_types(
    tools: str, arguments: dict[str, Any], rule: str, tmp_path: Path
) -> None:
    model, out = models.gemm(), tmp_path / "q.onnx"
    for tool in tools:
        with pytest.raises(ValueError, match=rule):
            if tool == "d":
                quantize_dynamic(model, out, **arguments)
            else:
                quantize_static(model, out, models.feeds(model), **arguments)
    assert not out.exists()


def test_arguments_that_have_no_effect(tmp_path: Path) -> None:
    """As in onnxruntime: options of another method, none of its kind; and arrays of torch."""
    model, files = models.gemm(), []
    feeds = [{"x": torch.from_numpy(feed["x"])} for feed in models.feeds(model)]
    nothing = {"TensorQuantOverrides": None, "ActivationSymmetric": None, "BlockSize": 0}
    for method, extra in (
        ("MinMax", {"CalibPercentile": 99}),
        ("Entropy", {"CalibMovingAverage": True}),
        ("Percentile", {"CalibMovingAverage": True}),
    ):
        for options in (extra, nothing):
            quantize_static(
                model,
                tmp_path / "q.onnx",
                feeds,
                calibrate_method=method,
                extra_options=options,
                verbose=False,
            )
            files.append((tmp_path / "q.onnx").read_bytes())
        assert files[-1] == files[-2]


def broken(op: str, attributes: dict[str, Any], *operands: str) -> onnx.ModelProto:
    """A product and a node that cannot be one of its operator, or reads what is not there."""
    return models.build(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"], "product"),
            helper.make_node(op, list(operands), ["y"], "it", **attributes),
        ],
        {"x": (models.FLOAT, [2, 8])},
        {"y": (models.FLOAT, None)},
        {"w": models.random(8, 8)},
    )


@pytest.mark.parametrize(
    ("model", "rule"),
    [
        (broken("Split", {}), "operand 0 must be given"),
        (broken("Conv", {}, "h"), "operand 1 must be given"),
        (broken("Where", {}, "h"), "operand 1 must be given"),
        (broken("Transpose", {"perm": 3}, "h"), "attribute 'perm' must be"),
        (broken("MatMul", {}, "h", "nowhere"), "found nothing of the name 'nowhere'"),
        (broken("Cast", {"to": 1}, "y"), "cycle"),
    ],
    ids=["split", "conv", "where", "perm", "name", "cycle"],
)
def test_malformed_models_are_errors(model: onnx.ModelProto, rule: str, tmp_path: Path) -> None:
    """Before anything takes their operands and attributes as they should be."""
    out, feeds = tmp_path / "q.onnx", [{"x": models.random(2, 8)}]
    for tool in (quantize_dynamic, quantize_static, convert_precision):
        with pytest.raises(RuntimeError, match=rule):
            tool(
                model, out, **({"calibration_data_reader": feeds} if "static" in str(tool) else {})
            )
    changed = _inference.Model(model.SerializeToString())
    options = _inference.StaticQuantization()
    for options.qoperator in (False, True):
        with pytest.raises(RuntimeError, match=rule):
            changed.quantize_static(options, {"x": (-1.0, 1.0)})
    assert not out.exists()


@pytest.mark.parametrize("quant_format", ["QDQ", "QOperator", "dynamic", "half"])
def test_nodes_in_another_order(quant_format: str, tmp_path: Path) -> None:
    """The files are those of the model with its nodes in order: onnxruntime's tool fails."""
    models_by_name = {"ordered": models.gemm(), "turned": models.gemm()}
    nodes = list(models_by_name["turned"].graph.node)
    del models_by_name["turned"].graph.node[:]
    models_by_name["turned"].graph.node.extend(nodes[::-1])
    for name, model in models_by_name.items():
        out = tmp_path / f"{name}.onnx"
        if quant_format == "dynamic":
            quantize_dynamic(model, out, verbose=False)
        elif quant_format == "half":
            convert_precision(model, out, verbose=False)
        else:
            quantize_static(
                model,
                out,
                models.feeds(model),
                quant_format,
                activation_type=QuantType.QUInt8,
                verbose=False,
            )
    ordered, turned = (onnx.load(tmp_path / f"{name}.onnx") for name in models_by_name)
    assert [node.name for node in turned.graph.node] == [node.name for node in ordered.graph.node]
    assert turned == ordered


def test_needs_neither_torch_nor_onnx(tmp_path: Path) -> None:
    onnx.save(models.gemm(), tmp_path / "m.onnx")
    script = (
        "import sys; from ortmodule_py.quantization.__main__ import main; "
        f"assert main([{str(tmp_path / 'm.onnx')!r}, {str(tmp_path / 'q.onnx')!r}]) == 0; "
        "print({'torch', 'onnx', 'onnxruntime'} & set(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert result.stdout.endswith("set()\n"), result.stdout + result.stderr


# The user's document, by text. Its slip: QuantType is used without being imported.
_DOCUMENT = """
from onnxruntime.quantization import quantize_dynamic

# Dynamic quantization
quantize_dynamic(
    model_input="model.onnx",
    model_output="model_quantized.onnx",
    weight_type=QuantType.QInt8
)

# Typical memory reduction: 4x (FP32 -> INT8)
"""


def test_snippets_of_the_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(
        models.build(
            [helper.make_node("MatMul", ["x", "w"], ["y"])],
            {"x": (models.FLOAT, [1, 256])},
            {"y": (models.FLOAT, [1, 256])},
            {"w": models.random(256, 256)},
        ),
        "model.onnx",
    )
    name = "ortmodule_py.onnxruntime.quantization"
    text = _DOCUMENT.replace("onnxruntime.quantization import", f"{name} import QuantType,")
    exec(compile(text, "document", "exec"), {})
    ratio = Path("model.onnx").stat().st_size / Path("model_quantized.onnx").stat().st_size
    assert ratio > 3.9
    exec(f'from {name} import quantize_dynamic\nquantize_dynamic("model.onnx", "model_q.onnx")', {})
    assert Path("model_q.onnx").read_bytes() == Path("model_quantized.onnx").read_bytes()


def test_errors_beside_infinity_are_relative_to_finite_numbers() -> None:
    error = output_error([-np.inf, 1.0, np.nan, 0.0], [-np.inf, 1.5, np.nan, 0.0])
    assert error.largest == 0.5 and error.relative == 0.5
    assert output_error([1.0], [np.inf]).largest == output_error([np.inf], [1.0]).largest == np.inf
