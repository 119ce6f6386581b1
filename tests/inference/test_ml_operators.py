"""Operators of ai.onnx.ml as onnxruntime runs them, at the corners that converters do not write."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortmodule_py import InferenceSession
from tests.inference.small_ml_models import (
    MODES,
    Array,
    feed_of,
    model_of,
    svm_classifier,
    tree_classifier,
    tree_regressor,
)
from tests.inference.test_session import ONE_THREAD

TRANSFORMS = ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT"]


def check(model: onnx.ModelProto, feeds: list[Array]) -> list[Any]:
    """Our results, compared with onnxruntime's."""
    file, named = model.SerializeToString(), feed_of(feeds)
    stock = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    ours = InferenceSession(file, ONE_THREAD).run(None, named)
    for mine, other in zip(ours, stock.run(None, named), strict=True):
        assert mine.dtype == other.dtype
        if other.dtype.kind in "OU":
            np.testing.assert_array_equal(mine, other)
        else:
            np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-5)
    return ours


@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize("targets", [1, 3])
def test_tree_regressor(aggregate: str, targets: int) -> None:
    for seed, modes in enumerate([*([mode] for mode in MODES), MODES]):
        extra = {"base_values": [0.5, -1.0, 2.0][:targets]} if seed % 2 else {}
        check(*tree_regressor(seed, targets, modes, aggregate_function=aggregate, **extra))


@pytest.mark.parametrize("count", [1, 7, 8, 9, 2000])
def test_rows_of_a_tree_are_independent(count: int) -> None:
    model, (x,) = tree_regressor(3, 2, MODES)
    many = np.resize(x, (count, x.shape[1]))
    session = InferenceSession(model.SerializeToString(), ONE_THREAD)
    (whole,) = session.run(None, {"x0": many})
    (one,) = session.run(None, {"x0": x})
    np.testing.assert_array_equal(whole, np.resize(one, whole.shape))


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("positive", [True, False])
@pytest.mark.parametrize("scored", [[0], [1]])
def test_tree_classifier_of_two_classes(transform: str, positive: bool, scored: list[int]) -> None:
    if transform == "PROBIT" and (not positive or scored == [0]):
        return  # of numbers that are no probabilities; half of onnxruntime's result has no value
    check(*tree_classifier(1, 2, scored, positive, post_transform=transform))
    check(*tree_classifier(2, 2, scored, positive, post_transform=transform, base_values=[0.2]))
    if scored == [0]:
        base = [0.2, -0.1]
        check(*tree_classifier(3, 2, scored, positive, post_transform=transform, base_values=base))


@pytest.mark.parametrize("transform", TRANSFORMS[:4])
def test_tree_classifier_of_several_classes(transform: str) -> None:
    for share in (1.0, 0.4):
        check(*tree_classifier(1, 3, [0, 1, 2], False, share, post_transform=transform))
        check(*tree_classifier(2, 4, [1, 3], False, share, post_transform=transform))
    base = [0.1, -0.2, 0.3]
    check(*tree_classifier(3, 3, [0, 1, 2], True, 0.5, base_values=base, post_transform=transform))


def tree_ensemble(dtype: str, aggregate: int, target_count: int) -> tuple[Any, list[Array]]:
    """The form of operator set 5: modes by number, sets, leaves apart."""
    choose = np.random.default_rng(7)
    modes = np.array([0, 6, 4, 5, 3, 6, 1], np.uint8)
    x = (choose.integers(-2, 5, size=(40, 3))).astype(dtype)
    x[3, :] = np.nan
    members = np.array([1, 3, np.nan, 0, 2, np.nan], dtype)
    leaves = 9
    attributes = {
        "tree_roots": [0, 4],
        "nodes_featureids": [0, 1, 2, 0, 1, 2, 0],
        "nodes_modes": numpy_helper.from_array(modes),
        "nodes_splits": numpy_helper.from_array(np.array([1, 0, 2, 3, 0.5, 0, 2], dtype)),
        "nodes_truenodeids": [1, 3, 0, 1, 5, 5, 7],
        "nodes_trueleafs": [0, 0, 1, 1, 0, 1, 1],
        "nodes_falsenodeids": [2, 2, 3, 4, 6, 6, 8],
        "nodes_falseleafs": [0, 1, 1, 1, 0, 1, 1],
        "nodes_missing_value_tracks_true": [0, 1, 0, 0, 1, 0, 0],
        "membership_values": numpy_helper.from_array(members),
        "leaf_targetids": choose.integers(0, target_count, leaves).tolist(),
        "leaf_weights": numpy_helper.from_array(choose.normal(size=leaves).astype(dtype)),
        "n_targets": target_count,
        "aggregate_function": aggregate,
    }
    kind = TensorProto.FLOAT if dtype == "float32" else TensorProto.DOUBLE
    return model_of("TreeEnsemble", [x], [kind], attributes, opset=5), [x]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("aggregate", range(4))
def test_tree_ensemble(dtype: str, aggregate: int) -> None:
    check(*tree_ensemble(dtype, aggregate, 2))


@pytest.mark.parametrize("kernel", ["RBF", "LINEAR", "POLY", "SIGMOID"])
@pytest.mark.parametrize("classes", [2, 3, 5])
def test_svm_classifier(kernel: str, classes: int) -> None:
    for transform in TRANSFORMS[: 3 if classes > 2 else 2]:
        check(*svm_classifier(classes, classes, kernel_type=kernel, post_transform=transform))
    pairs = classes * (classes - 1) // 2
    sigmoid = {"prob_a": [-1.5] * pairs, "prob_b": [0.1] * pairs}
    check(*svm_classifier(classes + 9, classes, kernel_type=kernel, **sigmoid))


def test_one_class_svm() -> None:
    x = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    attributes: dict[str, Any] = {
        "n_supports": 2,
        "support_vectors": [0.1, 0.2, 0.3, -1.0, 0.5, 0.0],
        "coefficients": [1.0, 0.5],
        "rho": [-0.4],
        "kernel_type": "RBF",
        "kernel_params": [0.5, 0.0, 3.0],
        "one_class": 1,
    }
    check(model_of("SVMRegressor", [x], [TensorProto.FLOAT], attributes), [x])


@pytest.mark.parametrize("transform", TRANSFORMS[:4])
def test_linear_classifier(transform: str) -> None:
    x = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    outputs = [TensorProto.INT64, TensorProto.FLOAT]
    for targets in (1, 3):
        attributes = {
            "coefficients": np.random.default_rng(1).normal(size=3 * targets).tolist(),
            "intercepts": [0.1, 0.2, -0.1][:targets],
            "classlabels_ints": [1 << 60, 7, -3][: max(targets, 2)],
            "post_transform": transform,
        }
        check(model_of("LinearClassifier", [x], outputs, attributes, opset=1), [x])


@pytest.mark.parametrize("op", ["LinearClassifier", "LinearRegressor"])
def test_more_coefficients_than_columns(op: str) -> None:
    """As in the iris model that comes with onnxruntime."""
    attributes: dict[str, Any] = {
        "coefficients": np.random.default_rng(1).normal(size=12).tolist(),
        "intercepts": [0.1, 0.2, -0.1],
    }
    outputs = [TensorProto.FLOAT]
    if op == "LinearClassifier":
        attributes["classlabels_ints"] = [0, 1, 2]
        outputs = [TensorProto.INT64, TensorProto.FLOAT]
    else:
        attributes["targets"] = 3
    for columns in (2, 3, 4):
        x = np.random.default_rng(0).normal(size=(5, columns)).astype(np.float32)
        check(model_of(op, [x], outputs, attributes, opset=1), [x])
    x = np.zeros((5, 5), np.float32)
    with pytest.raises(RuntimeError, match="a coefficient for each target and column"):
        check(model_of(op, [x], outputs, attributes, opset=1), [x])


STRINGS = np.array([["cat", "dog"], ["", "bée"]], object)
MAPPINGS: dict[str, tuple[Array, int, dict[str, Any]]] = {
    "strings to integers": (
        STRINGS,
        TensorProto.INT64,
        {"keys_strings": ["dog", "bée", "dog"], "values_int64s": [1, 2, 3], "default_int64": -7},
    ),
    "strings to strings": (
        STRINGS,
        TensorProto.STRING,
        {"keys_strings": ["dog", ""], "values_strings": ["hound", "none"]},
    ),
    "integers to strings": (
        np.array([3, 1 << 60, 5]),
        TensorProto.STRING,
        {"keys_int64s": [1 << 60, 3], "values_strings": ["big", "three"], "default_string": "?"},
    ),
    "integers beyond sizes": (
        np.array([3, 1 << 60]),
        TensorProto.INT64,
        {"keys_int64s": [3], "values_int64s": [1 << 50], "default_int64": 1 << 51},
    ),
    "floats with NaN": (
        np.array([0.5, np.nan, 2.0], np.float32),
        TensorProto.FLOAT,
        {"keys_floats": [2.0, 0.5], "values_floats": [9.0, 1.5]},
    ),
}


@pytest.mark.parametrize("name", MAPPINGS)
def test_label_encoder(name: str) -> None:
    x, kind, attributes = MAPPINGS[name]
    check(model_of("LabelEncoder", [x], [kind], attributes, opset=2), [x])


def test_imputer_of_the_least_integer() -> None:
    x = np.array([[1, np.iinfo(np.int64).min], [1 << 60, 4]])
    replaced = {
        "imputed_value_int64s": [7, 8],
        "replaced_value_int64": int(np.iinfo(np.int64).min),
    }
    check(model_of("Imputer", [x], [TensorProto.INT64], replaced, opset=1), [x])


def test_category_mapper() -> None:
    mapping = {"cats_strings": ["dog", "bée"], "cats_int64s": [5, 6]}
    check(model_of("CategoryMapper", [STRINGS], [TensorProto.INT64], mapping), [STRINGS])
    x = np.array([6, 5, 1])
    check(model_of("CategoryMapper", [x], [TensorProto.STRING], mapping), [x])


def test_one_hot_encoder() -> None:
    one_hot = {"cats_strings": ["dog", "bée", "cat"]}
    check(model_of("OneHotEncoder", [STRINGS], [TensorProto.FLOAT], one_hot), [STRINGS])
    x = np.array([[3, 1], [4, 1]])
    check(model_of("OneHotEncoder", [x], [TensorProto.FLOAT], {"cats_int64s": [4, 3]}), [x])


def test_encoder_that_must_know_all_categories() -> None:
    one_hot = {"cats_strings": ["dog", "bée", "cat", ""], "zeros": 0}
    model = model_of("OneHotEncoder", [STRINGS], [TensorProto.FLOAT], one_hot)
    check(model, [STRINGS])
    session = InferenceSession(model.SerializeToString(), ONE_THREAD)
    with pytest.raises(RuntimeError, match="one of the 4 categories, but element 1 is not"):
        session.run(None, {"x0": np.array([["cat", "cow"]], object)})


# ---- strings elsewhere -------------------------------------------------------------------------


def of_strings(*nodes: onnx.NodeProto, output: int, **constants: Array) -> bytes:
    """A model of nodes from `x`, strings, to `y`."""
    inputs = [helper.make_tensor_value_info("x", TensorProto.STRING, [None, 2])]
    outputs = [helper.make_tensor_value_info("y", output, None)]
    weights = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(list(nodes), "g", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return bytes(model.SerializeToString())


def test_strings_are_moved() -> None:
    file = of_strings(
        helper.make_node("Transpose", ["x"], ["t"]),
        helper.make_node("Concat", ["t", "more"], ["c"], axis=1),
        helper.make_node("Equal", ["c", "cat"], ["e"]),
        helper.make_node("Where", ["e", "new", "c"], ["y"]),
        output=TensorProto.STRING,
        more=np.array([["p"], ["q"]], object),
        cat=np.array(["cat"], object),
        new=np.array("kitten", object),
    )
    (y,) = InferenceSession(file, ONE_THREAD).run(None, {"x": STRINGS})
    np.testing.assert_array_equal(y, [["kitten", "", "p"], ["dog", "bée", "q"]])


def test_strings_are_scattered_and_reversed() -> None:
    file = of_strings(
        helper.make_node("ScatterElements", ["x", "places", "new"], ["a"], axis=1),
        helper.make_node("ScatterND", ["a", "rows", "row"], ["b"]),
        helper.make_node("ReverseSequence", ["b", "lengths"], ["c"], batch_axis=0, time_axis=1),
        helper.make_node("OneHot", ["depths", "depth", "words"], ["d"]),
        helper.make_node("Concat", ["c", "d"], ["y"], axis=1),
        output=TensorProto.STRING,
        places=np.array([[1], [0]]),
        new=np.array([["p"], ["q"]], object),
        rows=np.array([[1]]),
        row=np.array([["r", "s"]], object),
        lengths=np.array([2, 1]),
        depths=np.array([0, 2]),
        depth=np.array(3),
        words=np.array(["no", "yes"], object),
    )
    (y,) = InferenceSession(file, ONE_THREAD).run(None, {"x": STRINGS})
    stock = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(y, stock.run(None, {"x": STRINGS})[0])
    file = of_strings(
        helper.make_node("ScatterElements", ["x", "places", "x"], ["y"], reduction="max"),
        output=TensorProto.STRING,
        places=np.zeros((2, 2), np.int64),
    )
    with pytest.raises(RuntimeError, match="strings cannot be reduced"):
        InferenceSession(file, ONE_THREAD).run(None, {"x": STRINGS})


def test_operators_on_strings_are_refused_by_name() -> None:
    file = of_strings(helper.make_node("Neg", ["x"], ["y"], "minus"), output=TensorProto.STRING)
    with pytest.raises(RuntimeError, match="Neg 'minus': operand 0 must be numbers"):
        InferenceSession(file, ONE_THREAD).run(None, {"x": STRINGS})


def test_declared_types_are_kept() -> None:
    file = of_strings(helper.make_node("Identity", ["x"], ["y"]), output=TensorProto.INT64)
    with pytest.raises(RuntimeError, match="must have the type that the file declares"):
        InferenceSession(file, ONE_THREAD).run(None, {"x": STRINGS})
    file = of_strings(helper.make_node("Identity", ["x"], ["y"]), output=TensorProto.STRING)
    with pytest.raises(RuntimeError, match="must have type string, but found int64"):
        InferenceSession(file, ONE_THREAD).run(None, {"x": np.zeros((2, 2), np.int64)})
    session = InferenceSession(file, ONE_THREAD)
    session.run(None, {"x": STRINGS})
    with pytest.raises(RuntimeError, match="must have type string, but found int64"):
        session.run(None, {"x": np.zeros((2, 2), np.int64)})


def test_nodes_that_form_no_trees_are_refused() -> None:
    model, feeds = tree_regressor(0, 1, MODES)
    attributes = {attribute.name: attribute for attribute in model.graph.node[0].attribute}
    inner = list(attributes["nodes_modes"].strings).index(b"BRANCH_LEQ")
    for name, value, why in [
        ("nodes_truenodeids", 0, "tree"),  # a cycle
        ("nodes_truenodeids", 10**9, "a node's child must be in its tree"),
        ("nodes_featureids", -1, "must be a column of x"),
        ("nodes_featureids", 4, "x must have 5 columns"),
        ("target_ids", 1, "the target of a weight must be less than 1"),
    ]:
        integers = attributes[name].ints
        kept, integers[inner] = integers[inner], value
        with pytest.raises(RuntimeError, match=why):
            InferenceSession(model.SerializeToString(), ONE_THREAD).run(None, feed_of(feeds))
        integers[inner] = kept
    check(model, feeds)


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"cast_to": "TO_INT64"},
        {"map_form": "SPARSE", "max_map": 8},
        {"map_form": "SPARSE", "max_map": 9, "cast_to": "TO_INT64"},
    ],
)
def test_cast_map(attributes: dict[str, Any]) -> None:
    kind = helper.make_map_type_proto(
        TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    )
    dtype = TensorProto.INT64 if "cast_to" in attributes else TensorProto.FLOAT
    node = helper.make_node("CastMap", ["x"], ["y"], domain="ai.onnx.ml", **attributes)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_value_info("x", kind)],
        [helper.make_tensor_value_info("y", dtype, None)],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()
    stock = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    session = InferenceSession(model, ONE_THREAD)
    for feed in ({5: 1.5, 2: 7.25, 3: -1.75}, {0: 4.0}):
        (y,), (expected,) = session.run(None, {"x": feed}), stock.run(None, {"x": feed})
        np.testing.assert_array_equal(y, expected)
        assert y.dtype == expected.dtype and y.shape == expected.shape


@pytest.mark.parametrize("texts", [True, False])
def test_dict_vectorizer(texts: bool) -> None:
    key = TensorProto.STRING if texts else TensorProto.INT64
    vocabulary = (
        {"string_vocabulary": ["b", "é", "z"]} if texts else {"int64_vocabulary": [4, 1, 9]}
    )
    kind = helper.make_map_type_proto(key, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    inputs = [helper.make_value_info("x", kind)]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    node = helper.make_node("DictVectorizer", ["x"], ["y"], domain="ai.onnx.ml", **vocabulary)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
    model = helper.make_model(
        helper.make_graph([node], "g", inputs, outputs), opset_imports=opsets, ir_version=9
    ).SerializeToString()
    stock = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    session = InferenceSession(model, ONE_THREAD)
    for feed in [{"é": 2.5, "b": -1.0, "a": 7.0}, {"z": 1.0}]:
        numbered = feed if texts else {ord(name) % 10: value for name, value in feed.items()}
        (y,) = session.run(None, {"x": numbered})
        np.testing.assert_array_equal(y, stock.run(None, {"x": numbered})[0])
    for wrong in ({4: 1.0, "é": 2.0}, {}, {"é" if texts else 4: "a word"}):
        for runtime in (stock, session):
            with pytest.raises(RuntimeError):
                runtime.run(None, {"x": wrong})
    with pytest.raises(RuntimeError, match="must be a dict, but found a tensor"):
        session.run(None, {"x": np.zeros(3, np.float32)})
    with pytest.raises(RuntimeError, match="input 'x' must be a dict"):  # one each run
        session.run(None, {"x": [{"z": 1.0}]})
