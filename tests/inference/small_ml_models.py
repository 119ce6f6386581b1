"""Models of one operator of ai.onnx.ml, with feeds."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

Array = np.ndarray[Any, Any]
MODES = ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"]
ELEMENTS = {
    np.dtype("float32"): TensorProto.FLOAT,
    np.dtype("float64"): TensorProto.DOUBLE,
    np.dtype("int64"): TensorProto.INT64,
    np.dtype("object"): TensorProto.STRING,
}


def model_of(
    op: str, feeds: list[Array], outputs: list[Any], attributes: dict[str, Any], opset: int = 3
) -> onnx.ModelProto:
    """A model with inputs x0, x1 ... and outputs y0, y1 ... of these types (numbers of ONNX)."""
    inputs = [
        helper.make_tensor_value_info(f"x{i}", ELEMENTS[feed.dtype], [None] * feed.ndim)
        for i, feed in enumerate(feeds)
    ]
    results = [
        helper.make_tensor_value_info(f"y{i}", kind, None) if isinstance(kind, int) else kind
        for i, kind in enumerate(outputs)
    ]
    names = [value.name for value in results]
    node = helper.make_node(
        op, [value.name for value in inputs], names, domain="ai.onnx.ml", **attributes
    )
    graph = helper.make_graph([node], "g", inputs, results)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def feed_of(feeds: list[Array]) -> dict[str, Array]:
    return {f"x{i}": feed for i, feed in enumerate(feeds)}


class Nodes:
    """Lists of nodes of random trees before operator set 5."""

    def __init__(self, choose: np.random.Generator, trees: int, depth: int, modes: list[str]):
        self.columns: dict[str, list[Any]] = {
            f"nodes_{name}": []
            for name in (
                "treeids",
                "nodeids",
                "featureids",
                "values",
                "modes",
                "truenodeids",
                "falsenodeids",
                "missing_value_tracks_true",
            )
        }
        self.leaves: list[tuple[int, int]] = []
        self.choose, self.modes = choose, modes
        for number in range(trees):
            self.next = 0
            self._grow(number, depth)

    def _grow(self, number: int, depth: int) -> int:
        node, self.next = self.next, self.next + 1
        row = len(self.columns["nodes_modes"])
        is_leaf = depth == 0 or (node > 0 and self.choose.random() < 0.2)
        mode = "LEAF" if is_leaf else str(self.choose.choice(self.modes))
        # Thresholds that rows have, too.
        value = float(self.choose.integers(-2, 3)) / 2
        for name, entry in zip(
            self.columns,
            [number, node, int(self.choose.integers(4)), value, mode, 0, 0, 0],
            strict=True,
        ):
            self.columns[name].append(entry)
        if is_leaf:
            self.leaves.append((number, node))
            return node
        self.columns["nodes_truenodeids"][row] = self._grow(number, depth - 1)
        self.columns["nodes_falsenodeids"][row] = self._grow(number, depth - 1)
        self.columns["nodes_missing_value_tracks_true"][row] = int(self.choose.integers(2))
        return node


def rows_of_halves(seed: int, count: int = 50) -> Array:
    """Rows of 4 numbers, most of them thresholds of `Nodes`, some missing."""
    choose = np.random.default_rng(seed)
    x = (choose.integers(-3, 4, size=(count, 4)) / 2).astype(np.float32)
    x[choose.random(x.shape) < 0.1] = np.nan
    return x


def tree_regressor(
    seed: int, targets: int, modes: list[str], **attributes: Any
) -> tuple[onnx.ModelProto, list[Array]]:
    choose = np.random.default_rng(seed)
    nodes = Nodes(choose, 5, 5, modes)
    weights = [
        (number, node, target, float(choose.normal()))
        for number, node in nodes.leaves
        for target in range(targets)
        if targets == 1 or choose.random() < 0.7
    ]
    columns = ["target_treeids", "target_nodeids", "target_ids", "target_weights"]
    listed = dict(zip(columns, map(list, zip(*weights, strict=True)), strict=True))
    x = rows_of_halves(seed)
    given = {**nodes.columns, **listed, "n_targets": targets, **attributes}
    return model_of("TreeEnsembleRegressor", [x], [TensorProto.FLOAT], given), [x]


def tree_classifier(
    seed: int, classes: int, scored: list[int], positive: bool, share: float = 1.0, **attrs: Any
) -> tuple[onnx.ModelProto, list[Array]]:
    """`scored`: the classes with weights, which `share` of the leaves have."""
    choose = np.random.default_rng(seed)
    nodes = Nodes(choose, 5, 5, MODES[:1])
    weights = [
        (number, node, each, abs(value) / 4 if positive else value)
        for number, node in nodes.leaves
        for each in scored
        for value in [float(choose.normal())]
        if choose.random() < share
    ]
    columns = ["class_treeids", "class_nodeids", "class_ids", "class_weights"]
    listed = dict(zip(columns, map(list, zip(*weights, strict=True)), strict=True))
    x = rows_of_halves(seed)
    labels = {"classlabels_int64s": [10 * i - 5 for i in range(classes)]}
    given = {**nodes.columns, **listed, **labels, **attrs}
    outputs = [TensorProto.INT64, TensorProto.FLOAT]
    return model_of("TreeEnsembleClassifier", [x], outputs, given), [x]


def svm_classifier(
    seed: int, classes: int, **attributes: Any
) -> tuple[onnx.ModelProto, list[Array]]:
    choose = np.random.default_rng(seed)
    per_class = [int(n) for n in choose.integers(1, 5, classes)]
    vectors, pairs = sum(per_class), classes * (classes - 1) // 2
    given = {
        "classlabels_ints": list(range(classes)),
        "vectors_per_class": per_class,
        "support_vectors": choose.normal(size=vectors * 4).tolist(),
        "coefficients": choose.normal(size=vectors * (classes - 1)).tolist(),
        "rho": choose.normal(size=pairs).tolist(),
        "kernel_type": "RBF",
        "kernel_params": [0.3, 0.1, 2.0],
        **attributes,
    }
    x = choose.normal(size=(30, 4)).astype(np.float32)
    return model_of("SVMClassifier", [x], [TensorProto.INT64, TensorProto.FLOAT], given), [x]
