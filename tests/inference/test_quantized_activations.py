"""Activations that a file keeps as bytes (QDQ): whole patterns beside onnxruntime without its optimizer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortmodule_py.inference import InferenceSession, SessionOptions

SIZES = (2, 24, 12, 10)


class Graph:
    """Nodes on float32 whose values are quantized between them."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []

    def add(self, op: str, *inputs: str, **attributes: object) -> str:
        name = f"{op}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], name=name, **attributes))
        return name

    def constant(self, value: np.ndarray) -> str:
        name = f"constant{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(value, name))
        return name

    def quantized(self, x: str, scale: float, zero: int = 128) -> str:
        """`x` as uint8."""
        return self.add("QuantizeLinear", x, *self._numbers(scale, zero))

    def through_bytes(self, x: str, scale: float, zero: int = 128) -> str:
        numbers = self._numbers(scale, zero)
        return self.add("DequantizeLinear", self.add("QuantizeLinear", x, *numbers), *numbers)

    def _numbers(self, scale: float, zero: int) -> tuple[str, str]:
        return self.constant(np.array(scale, np.float32)), self.constant(np.array(zero, np.uint8))


def _attention(g: Graph) -> str:
    q, v = g.through_bytes("x", 0.03), g.through_bytes("z", 0.02, 120)
    k = g.through_bytes(g.add("Transpose", "z", perm=[0, 1, 3, 2]), 0.025)
    scores = g.through_bytes(g.add("MatMul", q, k), 0.2)
    weights = g.through_bytes(g.add("Softmax", scores, axis=-1), 1 / 255, 0)
    return g.quantized(g.add("MatMul", weights, v), 0.02)


def _silu(g: Graph) -> str:
    x = g.through_bytes("x", 0.03)
    gate = g.through_bytes(g.add("Sigmoid", x), 1 / 255, 0)
    return g.quantized(g.add("Mul", x, gate), 0.025, 20)


def _joined(g: Graph) -> str:
    both = g.add("Concat", g.through_bytes("x", 0.03), g.through_bytes("z", 0.02, 100), axis=1)
    rows = g.through_bytes(both, 0.04, 110)
    return g.quantized(g.add("Relu", rows), 0.02, 0)


def _residual(g: Graph) -> str:
    total = g.add("Add", g.through_bytes("x", 0.03), g.through_bytes("z", 0.02, 100))
    return g.quantized(g.add("Relu", total), 0.03, 0)


def _gated(g: Graph) -> str:
    """Squeeze and excitation: a number for each channel."""
    x = g.through_bytes("x", 0.03)
    means = g.through_bytes(g.add("GlobalAveragePool", "z"), 0.002, 100)
    return g.quantized(g.add("Mul", x, means), 0.0001, 120)


def _turned(g: Graph) -> str:
    """Operands of two layouts."""
    turned = g.add("Transpose", g.quantized("z", 0.02, 100), perm=[0, 2, 3, 1])
    sizes = g.constant(np.array([2, 12, 10, 24]))
    rows = g.add("Reshape", g.quantized("x", 0.03), sizes)
    real = [
        g.add("DequantizeLinear", x, *g._numbers(scale, zero))
        for x, scale, zero in ((rows, 0.03, 128), (turned, 0.02, 100))
    ]
    return g.quantized(g.add("Add", *real), 0.03, 0)


def _convolved(g: Graph) -> str:
    rng = np.random.default_rng(1)
    x = g.through_bytes("x", 0.03)
    for channels, outputs, group, size in ((24, 32, 1, 3), (32, 32, 32, 3), (32, 24, 1, 1)):
        weights = rng.integers(-120, 120, (outputs, channels // group, size, size))
        numbers = (
            g.constant(weights.astype(np.int8)),
            g.constant(rng.uniform(0.001, 0.002, outputs).astype(np.float32)),
            g.constant(np.zeros(outputs, np.int8)),
        )
        w = g.add("DequantizeLinear", *numbers, axis=0)
        x = g.through_bytes(g.add("Conv", x, w, group=group, pads=[size // 2] * 4), 0.02)
    return g.quantized(g.add("Add", x, g.through_bytes("z", 0.02)), 0.03)


PATTERNS: dict[str, tuple[Callable[[Graph], str], set[str]]] = {
    "attention": (_attention, {"MatMulIntegerToFloat"}),
    "silu": (_silu, set()),
    "joined": (_joined, {"Requantize", "Concat"}),
    "residual": (_residual, {"QuantizedAdd"}),
    "gated": (_gated, {"QuantizedMul"}),
    "turned": (_turned, {"QuantizedAdd"}),
    "convolved": (_convolved, {"ConvIntegerToFloat", "QuantizedAdd"}),
}
"""Each with operators on bytes that run."""


def _ops_run(profile: str) -> set[str]:
    events = json.loads(Path(profile).read_text())
    return {event["args"]["op_name"] for event in events if event.get("cat") == "Node"}


@pytest.mark.parametrize("kind", PATTERNS)
def test_patterns_of_bytes(kind: str, tmp_path: Path) -> None:
    build, on_bytes = PATTERNS[kind]
    graph = Graph()
    result = build(graph)
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, SIZES) for n in ("x", "z")]
    output = helper.make_tensor_value_info(result, TensorProto.UINT8, None)
    made = helper.make_graph(graph.nodes, kind, inputs, [output], graph.initializers)
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    stock = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    feeds = {name: rng.standard_normal(SIZES).astype(np.float32) for name in ("x", "z")}
    (wanted,) = stock.run(None, {i.name: feeds[i.name] for i in stock.get_inputs()})
    profiled = SessionOptions()
    profiled.enable_profiling, profiled.profile_file_prefix = True, str(tmp_path / "profile")
    session = InferenceSession(path, profiled)
    (found,) = session.run(None, {i.name: feeds[i.name] for i in session.get_inputs()})
    assert found.dtype == np.uint8
    difference = np.abs(found.astype(int) - wanted.astype(int))
    assert difference.max() <= 3 and (difference > 0).mean() < 0.01  # a step may lead to others
    ran = _ops_run(session.end_profiling())
    assert on_bytes <= ran and not {"MatMul", "Conv", "FusedConv"} & ran, ran
