"""quantize_dynamic beside onnxruntime's: the same nodes, names and bits, and files that interchange."""

from __future__ import annotations

import logging
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
from ortmodule_py.quantization import QuantizationReport, QuantType, quantize_dynamic
from tests.quantization import models

logging.getLogger().setLevel(logging.ERROR)

Model = Callable[[], onnx.ModelProto]


def nodes_of(graph: onnx.GraphProto) -> list[tuple[Any, ...]]:
    """Nodes without their order; those of subgraphs within them."""
    rows = []
    for node in graph.node:
        attrs = []
        for attr in node.attribute:
            value = helper.get_attribute_value(attr)
            if isinstance(value, onnx.GraphProto):
                value = (nodes_of(value), tensors_of(value))
            attrs.append((attr.name, str(value)))
        row = (node.op_type, node.domain, node.name, tuple(node.input), tuple(node.output))
        rows.append((*row, tuple(sorted(attrs))))
    return sorted(rows)


def tensors_of(graph: onnx.GraphProto) -> dict[str, tuple[Any, ...]]:
    return {
        tensor.name: (
            tensor.data_type,
            tuple(tensor.dims),
            numpy_helper.to_array(tensor).tobytes(),
        )
        for tensor in graph.initializer
    }


def both(
    model: onnx.ModelProto, folder: Path, **options: Any
) -> tuple[onnx.ModelProto, onnx.ModelProto, QuantizationReport]:
    """The model quantized by both tools."""
    path, ours, theirs = (str(folder / name) for name in ("m.onnx", "ours.onnx", "stock.onnx"))
    onnx.save(model, path)
    kind = options.pop("weight_type", "QInt8")
    stock.quantize_dynamic(path, theirs, weight_type=stock.QuantType[kind], **options)
    report = quantize_dynamic(path, ours, weight_type=QuantType[kind], verbose=False, **options)
    return onnx.load(ours), onnx.load(theirs), report


def assert_same_file(ours: onnx.ModelProto, theirs: onnx.ModelProto) -> None:
    assert nodes_of(ours.graph) == nodes_of(theirs.graph)
    assert tensors_of(ours.graph) == tensors_of(theirs.graph)


def assert_interchange(
    model: onnx.ModelProto,
    folder: Path,
    files: Sequence[str] = ("ours.onnx", "stock.onnx"),
    **options: Any,
) -> None:
    """Each file in each runtime, near the float model.

    With 7 bits: onnxruntime's products of 8 bits saturate on processors without VNNI.
    """
    both(model, folder, reduce_range=True, **options)
    for feed in models.feeds(model):
        exact = onnxruntime.InferenceSession(folder / "m.onnx").run(None, feed)
        for name in files:
            path = folder / name
            here = InferenceSession(path).run(None, feed)
            there = onnxruntime.InferenceSession(path).run(None, feed)
            for one, other, float32 in zip(here, there, exact, strict=True):
                scale = max(1e-3, float(np.abs(float32).max()))
                assert np.abs(one - other).max() / scale < 0.06
                assert np.abs(one - float32).max() / scale < 0.15


MODELS: dict[str, Model] = {
    "matmul": models.matmul,
    "gemm": lambda: models.gemm(False),
    "gemm_transposed": models.gemm,
    "conv": models.conv,
    "gather": models.gather,
    "lstm": models.lstm,
    "lstm_forward": lambda: models.lstm(1),
    "attention": models.attention,
    "shared": models.shared,
    "edges": models.edges,
}
OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "per_channel": {"per_channel": True},
    "reduced": {"reduce_range": True, "per_channel": True},
    "uint8": {"weight_type": "QUInt8"},
    "uint8_symmetric": {
        "weight_type": "QUInt8",
        "extra_options": {"WeightSymmetric": True, "ActivationSymmetric": True},
    },
    "least_range": {"extra_options": {"MinimumRealRange": 10.0}},
}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", MODELS)
def test_file_is_that_of_stock(name: str, options: str, tmp_path: Path) -> None:
    model = MODELS[name]()
    ours, theirs, report = both(model, tmp_path, **OPTIONS[options])
    assert_same_file(ours, theirs)
    assert report.quantized and report.quantized_bytes == (tmp_path / "ours.onnx").stat().st_size


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("name", [name for name in MODELS if name != "edges"])
def test_files_interchange(name: str, per_channel: bool, tmp_path: Path) -> None:
    assert_interchange(MODELS[name](), tmp_path, per_channel=per_channel)


@pytest.mark.parametrize(
    "options",
    [
        {"nodes_to_exclude": ["second"]},
        {"nodes_to_quantize": ["first", "second"]},
        {"op_types_to_quantize": ["MatMul"]},
        {"extra_options": {"MatMulConstBOnly": False}},
        {"extra_options": {"ForceQuantizeNoInputCheck": True}},
    ],
    ids=str,
)
def test_selection_is_that_of_stock(options: dict[str, Any], tmp_path: Path) -> None:
    ours, theirs, report = both(models.matmul(), tmp_path, **options)
    assert_same_file(ours, theirs)
    kept = {node.name for node in report.kept if node.note == "not asked for"}
    assert kept == set(options.get("nodes_to_exclude", [])) or "nodes_to_quantize" in options


def test_branches(tmp_path: Path) -> None:
    options = {"extra_options": {"EnableSubgraph": True}}
    ours, theirs, report = both(models.branches(), tmp_path, **options)
    assert [n[:3] for n in nodes_of(ours.graph)] == [n[:3] for n in nodes_of(theirs.graph)]
    choice = next(node for node in ours.graph.node if node.op_type == "If")
    for attr in choice.attribute:
        assert "MatMulInteger" in [node.op_type for node in attr.g.node]
    assert {node.name for node in report.quantized} == {"outer", "yes_product", "no_product"}
    # The other tool sorts the If in front of what its branches read.
    assert_interchange(models.branches(), tmp_path, ["ours.onnx"], **options)
    # Without it a branch keeps the float weight of the outer graph.
    _, _, report = both(models.branches(), tmp_path)
    assert {node.name for node in report.quantized} == {"outer"}
    assert_interchange(models.branches(), tmp_path, ["ours.onnx"])


def test_weights_of_constant_nodes(tmp_path: Path) -> None:
    """onnxruntime's tool leaves them in float32, or fails."""
    model = models.constants()
    path, ours = tmp_path / "m.onnx", tmp_path / "ours.onnx"
    onnx.save(model, path)
    report = quantize_dynamic(path, ours, reduce_range=True, verbose=False)
    origins = {node.name: node.weights[0].origin for node in report.quantized}
    assert origins == {
        "of_constant": "Constant",
        "of_transpose": "Transpose of Identity",
        "of_cast": "Cast",
        "of_conv": "Constant",
    }
    written = onnx.load(ours)
    kinds = {node.op_type for node in written.graph.node}
    assert kinds.isdisjoint({"MatMul", "Gemm", "Conv", "Constant", "Identity", "Transpose"})
    turned = {t.name: numpy_helper.to_array(t) for t in written.graph.initializer}["t_quantized"]
    alone = models.build(
        [helper.make_node("MatMul", ["x", "t"], ["y"], "p")],
        {"x": (models.FLOAT, [1, 8])},
        {"y": (models.FLOAT, [1, 6])},
        {"t": np.ascontiguousarray(models.random(6, 8).T)},
    )
    (tmp_path / "alone").mkdir()
    expected, _, _ = both(alone, tmp_path / "alone", reduce_range=True)
    np.testing.assert_array_equal(
        turned, numpy_helper.to_array(expected.graph.initializer[-1]).reshape(turned.shape)
    )
    for feed in models.feeds(model):
        exact = onnxruntime.InferenceSession(path).run(None, feed)[0]
        for run in (InferenceSession(ours), onnxruntime.InferenceSession(ours)):
            found = run.run(None, feed)[0]
            assert np.abs(found - exact).max() / np.abs(exact).max() < 0.1


def test_what_would_be_wrong_stays_float32(tmp_path: Path) -> None:
    """Where onnxruntime's tool writes a file that is wrong or that no runtime loads."""
    nan = models.random(8, 8)
    nan[0, 0] = np.nan
    model = models.build(
        [
            helper.make_node("MatMul", ["x", "nan"], ["a"], "nan"),
            helper.make_node("Cast", ["x"], ["h"], "half", to=onnx.TensorProto.FLOAT16),
            helper.make_node("MatMul", ["h", "half_w"], ["b"], "half_product"),
            helper.make_node("LSTM", ["s", "w", "r"], ["c"], "batch", hidden_size=4, layout=1),
            helper.make_node("MatMul", ["x", "v"], ["d"], "vector"),
            helper.make_node("MatMul", ["x", "ok"], ["e"], "wide"),
            helper.make_node("MatMul", ["x", "ok2"], ["f"], "wider"),
        ],
        {"x": (models.FLOAT, [2, 8]), "s": (models.FLOAT, [2, 3, 8])},
        {name: (models.FLOAT if name != "b" else 10, None) for name in "abcdef"},
        {
            "nan": nan,
            "half_w": models.random(8, 8).astype(np.float16),
            "w": models.random(1, 16, 8),
            "r": models.random(1, 16, 4),
            "v": models.random(8),
            "ok": models.random(8, 4),
            "ok2": models.random(8, 4, seed=9) * 7,
        },
    )
    path, ours = tmp_path / "m.onnx", tmp_path / "ours.onnx"
    onnx.save(model, path)
    report = quantize_dynamic(path, ours, per_channel=True, verbose=False)
    notes = {node.name: node.note for node in report.kept}
    assert "NaN" in notes["nan"] and "float16" in notes["half_product"]
    assert "layout" in notes["batch"]
    assert [node.name for node in report.quantized] == ["vector", "wide", "wider"]
    feed = models.feeds(model)[0]
    exact = InferenceSession(path).run(["d", "e", "f"], feed)
    for one, other in zip(exact, InferenceSession(ours).run(["d", "e", "f"], feed), strict=True):
        assert np.abs(one - other).max() / np.abs(one).max() < 0.05


def test_stack_of_matrices_has_one_scale(tmp_path: Path) -> None:
    """onnxruntime's tool gives it a scale for each column, which onnxruntime cannot run."""
    model = models.build(
        [helper.make_node("MatMul", ["x", "w"], ["y"], "stack")],
        {"x": (models.FLOAT, ["n", 8])},
        {"y": (models.FLOAT, [3, "n", 4])},
        {"w": models.random(3, 8, 4)},
    )
    assert_interchange(model, tmp_path, ["ours.onnx"], per_channel=True)


def test_names_that_are_taken(tmp_path: Path) -> None:
    """A model whose own names are those that quantization gives."""
    model = models.build(
        [
            helper.make_node("Relu", ["x"], ["x_scale"], "relu"),
            helper.make_node("MatMul", ["x", "w"], ["w_quantized"], "product"),
            helper.make_node("Add", ["x_scale", "w_quantized"], ["y"], "add"),
        ],
        {"x": (models.FLOAT, [4, 4])},
        {"y": (models.FLOAT, [4, 4])},
        {"w": models.random(4, 4)},
    )
    path, ours = tmp_path / "m.onnx", tmp_path / "ours.onnx"
    onnx.save(model, path)
    assert quantize_dynamic(path, ours, reduce_range=True, verbose=False).quantized
    feed = models.feeds(model)[0]
    exact = InferenceSession(path).run(None, feed)[0]
    found = onnxruntime.InferenceSession(ours).run(None, feed)[0]
    assert np.abs(found - exact).max() / np.abs(exact).max() < 0.05


def test_old_operator_sets_are_raised(tmp_path: Path) -> None:
    """Attributes become operands, as onnx's converter does; the results stay."""
    model = models.build(
        [
            helper.make_node("Clip", ["x"], ["c"], "clip", min=-0.5, max=0.75),
            helper.make_node("Pad", ["c"], ["p"], "pad", pads=[0, 0, 1, 0, 0, 1], value=0.25),
            helper.make_node("Slice", ["p"], ["s"], "slice", starts=[1], ends=[4], axes=[1]),
            helper.make_node("TopK", ["s"], ["t", "i"], "top", k=4),
            helper.make_node("Upsample", ["t", "scales"], ["u"], "up", mode="nearest"),
            helper.make_node("MatMul", ["u", "w"], ["y"], "product"),
        ],
        {"x": (models.FLOAT, [2, 4, 6])},
        {"y": (models.FLOAT, [2, 6, 3])},
        {"scales": np.array([1, 2, 1], np.float32), "w": models.random(4, 3)},
        opset=9,
    )
    path, ours = tmp_path / "m.onnx", tmp_path / "ours.onnx"
    onnx.save(model, path)
    report = quantize_dynamic(path, ours, reduce_range=True, verbose=False)
    assert "from 9 to 11" in report.notes[0]
    assert {o.domain: o.version for o in onnx.load(ours).opset_import}[""] == 11
    feed = models.feeds(model)[0]
    exact = onnxruntime.InferenceSession(path).run(None, feed)[0]
    for session in (InferenceSession(ours), onnxruntime.InferenceSession(ours)):
        found = session.run(None, feed)[0]
        assert np.abs(found - exact).max() / np.abs(exact).max() < 0.05
