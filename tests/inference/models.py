"""Models that several tests run, tools/gpu_check too: it needs nothing but onnx."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]


def model_bytes(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, tuple[int, list[Any]]],
    outputs: list[str],
    weights: dict[str, np.ndarray[Any, Any]] | None = None,
) -> bytes:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, *kind) for name, kind in inputs.items()],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return bytes(model.SerializeToString())


def weights(**shapes: tuple[int, ...]) -> dict[str, Array]:
    random = np.random.default_rng(0)
    return {k: random.standard_normal(v).astype("float32") * 0.3 for k, v in shapes.items()}


def classifier() -> bytes:
    """Convolution, pooling, product, layer norm, Gelu by its parts, softmax, arg max."""
    nodes = [
        helper.make_node("Conv", ["x", "k"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("Gemm", ["f", "w", "b"], ["h"]),
        helper.make_node("LayerNormalization", ["h", "s", "t"], ["n"]),
        helper.make_node("Tanh", ["n"], ["e"]),
        helper.make_node("Softmax", ["e"], ["y"]),
        helper.make_node("ArgMax", ["y"], ["best"], axis=1, keepdims=0),
    ]
    return model_bytes(
        nodes,
        {"x": (TensorProto.FLOAT, ["n", 3, "height", "width"])},
        ["y", "best"],
        weights(k=(8, 3, 3, 3), w=(8, 16), b=(16,), s=(16,), t=(16,)),
    )


def step() -> bytes:
    """state, x -> next = tanh(state @ w + x), and their sum: a model that is run in a loop."""
    nodes = [
        helper.make_node("MatMul", ["state", "w"], ["m"]),
        helper.make_node("Add", ["m", "x"], ["a"]),
        helper.make_node("Tanh", ["a"], ["next"]),
        helper.make_node("ReduceSum", ["next"], ["sum"], keepdims=0),
    ]
    kinds = {name: (TensorProto.FLOAT, ["n", 32]) for name in ("state", "x")}
    return model_bytes(nodes, kinds, ["next", "sum"], weights(w=(32, 32)))


def x_of(*shape: int) -> Array:
    return np.random.default_rng(7).standard_normal(shape).astype("float32")
