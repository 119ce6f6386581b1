"""Small float models of each operator that is quantized, and their feeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64, INT32 = TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32


def random(*shape: int, seed: int = 0, scale: float = 1.0) -> np.ndarray[Any, Any]:
    values = np.random.default_rng(seed + sum(shape)).standard_normal(shape) * scale
    return values.astype(np.float32)


def build(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, tuple[int, Sequence[Any]]],
    outputs: Mapping[str, tuple[int, Sequence[Any]]],
    weights: Mapping[str, np.ndarray[Any, Any]],
    opset: int = 17,
    **kwargs: Any,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(name, *kind) for name, kind in inputs.items()],
        [helper.make_tensor_value_info(name, *kind) for name, kind in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, **kwargs)


def matmul() -> onnx.ModelProto:
    """Two products that share an input and a weight, one without a constant, and an Add."""
    return build(
        [
            helper.make_node("MatMul", ["x", "w"], ["a"], "first"),
            helper.make_node("MatMul", ["x", "v"], ["b"], "second"),
            helper.make_node("Relu", ["a"], ["r"]),
            helper.make_node("MatMul", ["r", "v"], ["c"]),
            helper.make_node("Transpose", ["b"], ["t"], perm=[0, 2, 1]),
            helper.make_node("MatMul", ["t", "c"], ["d"], "dynamic"),
            helper.make_node("Add", ["d", "bias"], ["y"], "add"),
        ],
        {"x": (FLOAT, ["n", 3, 16])},
        {"y": (FLOAT, ["n", 16, 16])},
        {"w": random(16, 16), "v": random(16, 16, seed=1), "bias": random(16)},
    )


def gemm(transposed: bool = True) -> onnx.ModelProto:
    """Gemms with and without bias, and one that stays because of its alpha."""
    return build(
        [
            helper.make_node("Gemm", ["x", "w", "b"], ["h"], "one", transB=int(transposed)),
            helper.make_node("Relu", ["h"], ["r"], "relu"),
            helper.make_node("Gemm", ["r", "v"], ["z"], "two"),
            helper.make_node("Gemm", ["z", "v", "b"], ["y"], "scaled", alpha=0.5),
        ],
        {"x": (FLOAT, ["n", 12])},
        {"y": (FLOAT, ["n", 8])},
        {
            "w": random(8, 12) if transposed else random(12, 8),
            "b": random(8),
            "v": random(8, 8),
        },
    )


def conv() -> onnx.ModelProto:
    """Convolutions with bias, groups and strides, without bias, and of one axis."""
    return build(
        [
            helper.make_node("Conv", ["x", "w", "b"], ["c"], "conv", pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["c"], ["r"], "relu"),
            helper.make_node("Conv", ["r", "v"], ["d"], "deep", group=4, strides=[2, 2]),
            helper.make_node("GlobalAveragePool", ["d"], ["p"], "pool"),
            helper.make_node("Flatten", ["p"], ["f"], "flat"),
            helper.make_node("Gemm", ["f", "g", "gb"], ["y"], "head", transB=1),
        ],
        {"x": (FLOAT, ["n", 3, 12, 12])},
        {"y": (FLOAT, ["n", 5])},
        {
            "w": random(8, 3, 3, 3, scale=0.3),
            "b": random(8),
            "v": random(8, 2, 3, 3),
            "g": random(5, 8),
            "gb": random(5),
        },
    )


def gather() -> onnx.ModelProto:
    """A table that is looked up, moved, added to, multiplied, and also an output."""
    return build(
        [
            helper.make_node("Gather", ["table", "ids"], ["e"], "lookup"),
            helper.make_node("Transpose", ["e"], ["t"], "turn", perm=[0, 2, 1]),
            helper.make_node("Add", ["e", "p"], ["s"], "add"),
            helper.make_node("MatMul", ["e", "w"], ["m"], "product"),
            helper.make_node("MatMul", ["t", "m"], ["y"], "attend"),
        ],
        {"ids": (INT64, ["n", 6])},
        {"y": (FLOAT, ["n", 16, 16]), "s": (FLOAT, ["n", 6, 16]), "e": (FLOAT, ["n", 6, 16])},
        {"table": random(20, 16), "p": random(6, 16), "w": random(16, 16)},
    )


def lstm(directions: int = 2) -> onnx.ModelProto:
    hidden, width = 5, 7
    return build(
        [
            helper.make_node(
                "LSTM",
                ["x", "w", "r", "b"],
                ["y", "h", "c"],
                "lstm",
                hidden_size=hidden,
                direction="bidirectional" if directions == 2 else "forward",
            ),
            helper.make_node("Transpose", ["y"], ["t"], "turn", perm=[2, 0, 1, 3]),
        ],
        {"x": (FLOAT, ["s", "n", width])},
        {"t": (FLOAT, None), "h": (FLOAT, None), "c": (FLOAT, None)},
        {
            "w": random(directions, 4 * hidden, width),
            "r": random(directions, 4 * hidden, hidden),
            "b": random(directions, 8 * hidden, scale=0.1),
        },
    )


def attention() -> onnx.ModelProto:
    """com.microsoft's embedding and attention, as fused encoders have them."""
    width = 16
    return build(
        [
            helper.make_node(
                "EmbedLayerNormalization",
                ["ids", "", "words", "places", "", "gamma", "beta"],
                ["e", "mask_index"],
                "embed",
                domain="com.microsoft",
            ),
            helper.make_node(
                "Attention",
                ["e", "qkv", "qkv_bias"],
                ["a"],
                "attend",
                domain="com.microsoft",
                num_heads=4,
            ),
            helper.make_node("MatMul", ["a", "out"], ["y"], "project"),
        ],
        {"ids": (INT32, ["n", 6])},
        {"y": (FLOAT, None)},
        {
            "words": random(30, width),
            "places": random(8, width),
            "gamma": random(width) + 2,
            "beta": random(width),
            "qkv": random(width, 3 * width, scale=0.2),
            "qkv_bias": random(3 * width, scale=0.1),
            "out": random(width, width),
        },
    )


def branches() -> onnx.ModelProto:
    """Products in the branches of an If, one with a weight of the outer graph."""

    def branch(name: str, weight: str, own: bool) -> onnx.GraphProto:
        node = helper.make_node("MatMul", ["h", weight], [f"{name}_y"], f"{name}_product")
        arrays = [numpy_helper.from_array(random(8, 8, seed=3), weight)] if own else []
        output = helper.make_tensor_value_info(f"{name}_y", FLOAT, ["n", 8])
        return helper.make_graph([node], name, [], [output], arrays)

    return build(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"], "outer"),
            helper.make_node(
                "If",
                ["flag"],
                ["y"],
                "choice",
                then_branch=branch("yes", "inner", True),
                else_branch=branch("no", "w", False),
            ),
        ],
        {"x": (FLOAT, ["n", 8]), "flag": (TensorProto.BOOL, [])},
        {"y": (FLOAT, ["n", 8])},
        {"w": random(8, 8)},
    )


def shared() -> onnx.ModelProto:
    """A weight that is also added, before and behind its product."""
    return build(
        [
            helper.make_node("Add", ["x", "w"], ["a"], "before"),
            helper.make_node("MatMul", ["a", "w"], ["m"], "product"),
            helper.make_node("Mul", ["m", "w"], ["y"], "behind"),
        ],
        {"x": (FLOAT, [8, 8])},
        {"y": (FLOAT, [8, 8])},
        {"w": random(8, 8)},
    )


def edges() -> onnx.ModelProto:
    """Weights of ties, zeros, tiny, one-sided and large numbers."""
    ties = (np.arange(-128, 128, dtype=np.float32) * 0.5).reshape(16, 16)
    ties[0, 0] = 127.0
    weights = {
        "ties": ties,
        "zeros": np.zeros((16, 16), np.float32),
        "tiny": random(16, 16) * np.float32(1e-38),
        "positive": np.abs(random(16, 16)) + 5,
        "wide": random(16, 16) * np.float32(1e30),
    }
    nodes = [
        helper.make_node("MatMul", ["x", name], [f"y_{name}"], f"n_{name}") for name in weights
    ]
    outputs = {f"y_{name}": (FLOAT, None) for name in weights}
    return build(nodes, {"x": (FLOAT, [2, 16])}, outputs, weights)


def constants() -> onnx.ModelProto:
    """Weights in Constant nodes and behind Identity, Transpose and Cast."""
    half = helper.make_node("Cast", ["half"], ["widened"], "widen", to=FLOAT)
    return build(
        [
            helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(random(12, 8))),
            helper.make_node("MatMul", ["x", "c"], ["a"], "of_constant"),
            helper.make_node("Identity", ["w"], ["i"], "same"),
            helper.make_node("Transpose", ["i"], ["t"], "turned", perm=[1, 0]),
            helper.make_node("MatMul", ["a", "t"], ["b"], "of_transpose"),
            half,
            helper.make_node("Gemm", ["b", "widened", "bias"], ["d"], "of_cast", transB=1),
            helper.make_node("Constant", [], ["k"], value=numpy_helper.from_array(random(4, 1, 3))),
            helper.make_node("Unsqueeze", ["d", "one"], ["u"], "rows"),
            helper.make_node("Conv", ["u", "k"], ["y"], "of_conv"),
        ],
        {"x": (FLOAT, ["n", 12])},
        {"y": (FLOAT, None)},
        {
            "w": random(6, 8),
            "half": random(10, 6).astype(np.float16),
            "bias": random(10),
            "one": np.array([1], np.int64),
        },
    )


def feeds(model: onnx.ModelProto, count: int = 2) -> list[dict[str, Any]]:
    """Arrays for the inputs without an initializer; names of sizes become 2."""
    known = {initializer.name for initializer in model.graph.initializer}
    result = []
    for seed in range(count):
        feed: dict[str, Any] = {}
        for value in model.graph.input:
            if value.name in known:
                continue
            kind = value.type.tensor_type
            shape = [dim.dim_value or 2 for dim in kind.shape.dim]
            if kind.elem_type == FLOAT:
                feed[value.name] = random(*shape, seed=seed + 5)
            elif kind.elem_type == TensorProto.BOOL:
                feed[value.name] = np.array(seed % 2 == 0)
            else:
                dtype = np.int64 if kind.elem_type == INT64 else np.int32
                feed[value.name] = np.random.default_rng(seed).integers(0, 6, shape).astype(dtype)
        result.append(feed)
    return result
