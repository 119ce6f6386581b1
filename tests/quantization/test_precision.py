"""Models in 16-bit floats: files for both runtimes, what stays in float32, bytes and errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from ortmodule_py import InferenceSession
from ortmodule_py.convert_precision import convert_precision, main
from tests.quantization import models

Array = np.ndarray[Any, Any]
node = helper.make_node


def results_of(path: Path, feeds: dict[str, Array]) -> list[list[Array]]:
    """Of our session and of onnxruntime's."""
    stock = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return [InferenceSession(path).run(None, feeds), stock.run(None, feeds)]


def norm_and_mask() -> onnx.ModelProto:
    """A LayerNormalization in small steps, then attention with a mask of float32's lowest number."""
    nodes = [
        node("ReduceMean", ["x"], ["mean"], axes=[-1]),
        node("Sub", ["x", "mean"], ["centred"]),
        node("Pow", ["centred", "two"], ["squares"]),
        node("ReduceMean", ["squares"], ["variance"], axes=[-1]),
        node("Add", ["variance", "epsilon"], ["moved"]),
        node("Sqrt", ["moved"], ["deviation"]),
        node("Div", ["centred", "deviation"], ["normal"], "divide"),
        node("MatMul", ["normal", "w"], ["q"], "project"),
        node("Transpose", ["normal"], ["k"], perm=[0, 2, 1]),
        node("MatMul", ["q", "k"], ["scores"], "score"),
        node("Cast", ["hidden"], ["h"], to=TensorProto.FLOAT),
        node("Mul", ["h", "lowest"], ["mask"]),
        node("Add", ["scores", "mask"], ["masked"], "add mask"),
        node("Softmax", ["masked"], ["p"], axis=-1),
        node("MatMul", ["p", "normal"], ["y"], "mix"),
    ]
    weights = {
        "two": np.float32(2),
        "epsilon": np.float32(1e-12),
        "w": models.random(64, 64, scale=0.2),
        "lowest": np.finfo(np.float32).min,
    }
    inputs = {"x": (models.FLOAT, ["n", 5, 64]), "hidden": (TensorProto.BOOL, ["n", 1, 5])}
    outputs = {"y": (models.FLOAT, ["n", 5, 64])}
    arrays = {name: np.asarray(value) for name, value in weights.items()}
    return models.build(nodes, inputs, outputs, arrays)


def test_what_leaves_the_range_stays_in_float32(tmp_path: Path) -> None:
    model, path = norm_and_mask(), tmp_path / "half.onnx"
    # Squares of such numbers are beyond float16; one row is hidden as a whole.
    x = 1000 * models.random(2, 5, 64)
    feeds = {"x": x, "hidden": np.array([[[0, 0, 1, 0, 1]], [[1] * 5]], bool)}
    report = convert_precision(model, path, samples=feeds, verbose=False)
    assert {"project", "score", "mix"} <= {each.name for each in report.quantized}
    kept = {each.output: each.note for each in report.kept}
    assert {"squares", "variance", "moved", "deviation", "normal", "mask", "masked"} <= set(kept)
    assert "beyond float16's range" in kept["mask"]
    (exact,) = InferenceSession(model.SerializeToString()).run(None, feeds)
    for (y,) in results_of(path, feeds):
        assert y.dtype == np.float32
        assert np.abs(y - exact).max() < 2e-2 * np.abs(exact).max()
    assert report.outputs["y"].largest < 2e-2
    (weight,) = (each for one in report.nodes for each in one.weights if each.name == "w")
    assert (weight.float_bytes, weight.quantized_bytes) == (4 * 64 * 64, 2 * 64 * 64)
    assert 0 < weight.relative_error < 5e-4


@pytest.mark.parametrize("keep_io_types", [True, False])
@pytest.mark.parametrize("make", [models.matmul, models.gemm])
def test_both_runtimes_run_the_file(tmp_path: Path, make: Any, keep_io_types: bool) -> None:
    model, path = make(), tmp_path / "half.onnx"
    report = convert_precision(model, path, keep_io_types=keep_io_types, verbose=False)
    written = onnx.load(path)
    onnx.checker.check_model(written, full_check=True)
    kinds = {
        each.type.tensor_type.elem_type for each in [*written.graph.input, *written.graph.output]
    }
    assert kinds == {TensorProto.FLOAT if keep_io_types else TensorProto.FLOAT16}
    assert {each.data_type for each in written.graph.initializer} <= {
        TensorProto.FLOAT16,
        TensorProto.INT64,
    }
    assert not report.kept
    sizes = [dim.dim_value or 2 for dim in model.graph.input[0].type.tensor_type.shape.dim]
    x = models.random(*sizes)
    given = x if keep_io_types else x.astype(np.float16)
    exact = InferenceSession(model.SerializeToString()).run(None, {"x": x})
    for found in results_of(path, {"x": given}):
        for y, wanted in zip(found, exact, strict=True):
            assert np.abs(y - wanted).max() < 2e-2 * np.abs(wanted).max()


@pytest.mark.parametrize(
    ("precision", "weights_only"), [("float16", True), ("bfloat16", True), ("bfloat16", False)]
)
def test_weights_alone(tmp_path: Path, precision: str, weights_only: bool) -> None:
    w = models.random(300, 200)
    weights = {"w": w, "bias": models.random(200), "huge": np.full((200, 2), 3.4e38, np.float32)}
    nodes = [
        node("MatMul", ["x", "w"], ["m"]),
        node("Add", ["m", "bias"], ["y"]),
        node("Identity", ["huge"], ["z"]),
    ]
    outputs = {"y": (models.FLOAT, ["n", 200]), "z": (models.FLOAT, [200, 2])}
    model = models.build(nodes, {"x": (models.FLOAT, ["n", 300])}, outputs, weights)
    path = tmp_path / "half.onnx"
    report = convert_precision(model, path, precision, weights_only=weights_only, verbose=False)
    assert [each.name for each in report.quantized] == ["w"]
    assert [(each.name, each.note) for each in report.kept] == [
        ("huge", f"it is beyond the range of {precision}")
    ]
    assert report.quantized_bytes < report.float_bytes - w.nbytes / 2 + 1000
    x = models.random(7, 300)
    bits = {"float16": 11, "bfloat16": 8}[precision]
    for y, z in results_of(path, {"x": x}):
        assert np.abs(y - (x @ w + weights["bias"])).max() < 300 * 2.0**-bits * np.abs(w).max()
        assert np.array_equal(z, weights["huge"])
    memory = InferenceSession(path).memory({"x": x.shape})
    assert memory.weights_bytes < 0.6 * sum(each.nbytes for each in weights.values())


def test_bodies_are_converted_too(tmp_path: Path) -> None:
    """Both branches read a weight of the graph around them and one of their own."""

    def branch(name: str) -> onnx.GraphProto:
        own = onnx.numpy_helper.from_array(models.random(16, 16, seed=len(name)), f"{name}_w")
        steps = [
            node("MatMul", ["h", "w"], [f"{name}_m"]),
            node("MatMul", [f"{name}_m", f"{name}_w"], [f"{name}_y"]),
        ]
        out = helper.make_tensor_value_info(f"{name}_y", models.FLOAT, None)
        return helper.make_graph(steps, name, [], [out], [own])

    nodes = [
        node("Relu", ["x"], ["h"]),
        node("If", ["c"], ["z"], then_branch=branch("yes"), else_branch=branch("no")),
        node("Add", ["z", "h"], ["y"]),
    ]
    inputs = {"x": (models.FLOAT, ["n", 16]), "c": (TensorProto.BOOL, [])}
    model = models.build(
        nodes, inputs, {"y": (models.FLOAT, ["n", 16])}, {"w": models.random(16, 16)}
    )
    path = tmp_path / "half.onnx"
    report = convert_precision(model, path, verbose=False)
    assert sum(each.op == "MatMul" for each in report.quantized) == 4
    for choice in (True, False):
        feeds = {"x": models.random(3, 16), "c": np.array(choice)}
        (exact,) = InferenceSession(model.SerializeToString()).run(None, feeds)
        for (y,) in results_of(path, feeds):
            assert np.abs(y - exact).max() < 2e-2 * np.abs(exact).max()


def test_a_weight_of_one_branch_leaves_the_input_of_its_name_in_another(tmp_path: Path) -> None:
    def value(name: str, kind: int, sizes: list[int] | None = None) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, sizes)

    weight = models.random(16, 16)
    product = helper.make_graph(
        [node("MatMul", ["x", "w"], ["p"])],
        "product",
        [],
        [value("p", models.FLOAT)],
        [onnx.numpy_helper.from_array(weight, "w")],
    )
    body = helper.make_graph(
        [node("Identity", ["go"], ["on"]), node("Add", ["w", "w"], ["more"])],
        "body",
        [
            value("i", TensorProto.INT64, []),
            value("go", TensorProto.BOOL, []),
            value("w", models.FLOAT),
        ],
        [value("on", TensorProto.BOOL, []), value("more", models.FLOAT)],
    )
    loop = helper.make_graph(
        [node("Loop", ["times", "", "x"], ["l"], body=body)], "loop", [], [value("l", models.FLOAT)]
    )
    # The branch with the weight comes first: attributes are in the order of their names.
    choice = node("If", ["c"], ["y"], then_branch=loop, else_branch=product)
    inputs = {"x": (models.FLOAT, ["n", 16]), "c": (TensorProto.BOOL, [])}
    outputs = {"y": (models.FLOAT, ["n", 16])}
    model = models.build([choice], inputs, outputs, {"times": np.array(3)})
    path, x = tmp_path / "half.onnx", models.random(2, 16)
    report = convert_precision(model, path, weights_only=True, verbose=False)
    assert [each.name for each in report.quantized] == ["w"]
    for doubles, expected in ((True, 8 * x), (False, x @ weight)):
        for y in results_of(path, {"x": x, "c": np.array(doubles)}):
            assert np.abs(y[0] - expected).max() < 2e-2 * np.abs(expected).max()


def test_samples_show_values_that_leave_the_range(tmp_path: Path) -> None:
    nodes = [node("Mul", ["x", "x"], ["s"], "square"), node("Div", ["s", "x"], ["y"], "divide")]
    model = models.build(nodes, {"x": (models.FLOAT, ["n"])}, {"y": (models.FLOAT, ["n"])}, {})
    path, x = tmp_path / "half.onnx", np.array([1.0, 1000.0], np.float32)
    report = convert_precision(model, path, samples={"x": x}, verbose=False)
    assert {each.name for each in report.kept} == {"square", "divide"}
    assert np.array_equal(InferenceSession(path).run(None, {"x": x})[0], x)
    blind = convert_precision(model, path, verbose=False)
    assert not blind.kept
    asked = convert_precision(
        model, path, op_types_to_keep=["Div"], nodes_to_keep=["square"], verbose=False
    )
    assert [each.note for each in asked.kept] == ["asked for", "asked for"]


def test_values_leave_the_range_beside_infinity(tmp_path: Path) -> None:
    nodes = [
        node("Log", ["x"], ["l"], "log"),
        node("Mul", ["l", "c"], ["big"], "grow"),
        node("Div", ["big", "c"], ["y"], "shrink"),
    ]
    inputs = {"x": (models.FLOAT, ["n"])}
    model = models.build(
        nodes, inputs, {"y": (models.FLOAT, ["n"])}, {"c": np.array(5e4, np.float32)}
    )
    path, x = tmp_path / "half.onnx", np.array([0.0, 100.0], np.float32)
    report = convert_precision(model, path, samples={"x": x}, verbose=False)
    assert {each.name for each in report.kept} == {"grow", "shrink"}
    (y,) = InferenceSession(path).run(None, {"x": x})
    assert y[0] == -np.inf and abs(y[1] - np.log(100)) < 0.01


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = tmp_path / "in.onnx", tmp_path / "out.onnx"
    weights = {"w": models.random(16, 64)}  # 2 KiB in float16: smaller ones stay in the file
    x, y = {"x": (models.FLOAT, ["n", 16])}, {"y": (models.FLOAT, ["n", 64])}
    onnx.save(models.build([node("MatMul", ["x", "w"], ["y"], "product")], x, y, weights), source)
    np.savez(tmp_path / "feed.npz", x=models.random(3, 16))
    arguments = [str(source), str(target), "--external-data", "--samples", f"{tmp_path}/feed.npz"]
    assert main(arguments) == 0
    said = capsys.readouterr().out
    assert "in float16: " in said and "largest error" in said
    assert (tmp_path / "out.onnx.data").is_file()
    results_of(target, {"x": models.random(3, 16)})
    assert main([str(tmp_path / "absent.onnx"), str(target)]) == 1
    with pytest.raises(ValueError, match="'float16' or 'bfloat16', but found 'int8'"):
        convert_precision(source, target, "int8")


@pytest.mark.parametrize("form", [{}, {"weights_only": True}, {"keep_io_types": False}])
def test_initializers_that_are_inputs_stay_inputs(tmp_path: Path, form: dict[str, bool]) -> None:
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("MatMul", ["h", "v"], ["y"])]
    weights = {"w": models.random(16, 32), "v": models.random(32, 32)}
    inputs = {"x": (models.FLOAT, ["n", 16]), "w": (models.FLOAT, [16, 32])}
    model = models.build(nodes, inputs, {"y": (models.FLOAT, ["n", 32])}, weights)
    path = tmp_path / "half.onnx"
    report = convert_precision(model, path, verbose=False, **form)
    assert ["input, too" in each.note for each in report.kept if each.name == "w"] == [True]
    converted = {each.data_type for each in onnx.load(path).graph.initializer if each.name != "w"}
    assert converted == {TensorProto.FLOAT16}
    x, other = models.random(3, 16), models.random(16, 32)
    if "keep_io_types" in form:
        x = x.astype("float16")
    for w, feeds in ((weights["w"], {"x": x}), (other, {"x": x, "w": other})):
        for (y,) in results_of(path, feeds):
            np.testing.assert_allclose(y, x.astype("float32") @ w @ weights["v"], rtol=0, atol=0.2)
