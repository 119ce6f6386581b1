"""Models whose nodes and feeds contradict each other: an error or a result, never a crash."""

from __future__ import annotations

import random
import warnings
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto

from ortmodule_py import InferenceSession
from tests.inference.small_ml_models import (
    MODES,
    feed_of,
    model_of,
    svm_classifier,
    tree_classifier,
    tree_regressor,
)
from tests.inference.test_session import ONE_THREAD
from tests.onnx_backend.cases import cases

ODD = [-2, -1, 0, 1, 2, 3, 7, 100, 1 << 31, 1 << 62, -(1 << 62)]
CASES = 1000


def change_attribute(node: onnx.NodeProto, choose: random.Random) -> None:
    attribute = choose.choice(node.attribute)
    if attribute.type == AttributeProto.INT:
        attribute.i = choose.choice(ODD)
    elif attribute.type == AttributeProto.INTS and attribute.ints and choose.random() < 0.8:
        attribute.ints[choose.randrange(len(attribute.ints))] = choose.choice(ODD)
    elif attribute.type == AttributeProto.INTS:
        attribute.ints.append(choose.choice(ODD))
    elif attribute.type == AttributeProto.FLOAT:
        attribute.f = choose.choice([0.0, -1.0, float("nan"), float("inf")])
    else:
        node.attribute.remove(attribute)


def change_feed(feed: np.ndarray[Any, Any], choose: random.Random) -> np.ndarray[Any, Any]:
    if feed.dtype.kind in "iu" and feed.size and choose.random() < 0.4:
        changed = feed.copy()
        limits = np.iinfo(feed.dtype)
        number = choose.choice([n for n in ODD if limits.min <= n <= limits.max])
        changed.reshape(-1)[choose.randrange(feed.size)] = number
        return changed
    if feed.ndim == 0:
        return feed.reshape(1)
    axis = choose.randrange(feed.ndim)
    return np.take(feed, range(choose.randint(0, feed.shape[axis])), axis=axis)


def mutate(model: onnx.ModelProto, feeds: list[Any], ops: list[str], choose: random.Random) -> None:
    node = choose.choice(model.graph.node)
    kind = choose.random()
    if kind < 0.4 and node.attribute:
        change_attribute(node, choose)
    elif kind < 0.55 and node.input:
        names = [value.name for value in model.graph.input] + ["", "absent"]
        node.input[choose.randrange(len(node.input))] = choose.choice(names)
    elif kind < 0.65:
        node.op_type = choose.choice(ops)
    elif kind < 0.75 and node.input:
        del node.input[choose.randrange(len(node.input))]
    elif feeds:
        for value in model.graph.input:
            value.type.tensor_type.ClearField("shape")
        i = choose.randrange(len(feeds))
        if isinstance(feeds[i], np.ndarray):
            feeds[i] = change_feed(feeds[i], choose)


def test_no_model_crashes() -> None:
    small = [case for case in cases("node") if len(case.model) < 4000 and case.data_sets]
    ops = sorted({node.op_type for case in small for node in parsed(case.model).graph.node})
    choose = random.Random(11)
    ran = 0
    for _ in range(CASES):
        case = choose.choice(small)
        model, feeds = parsed(case.model), list(case.data_sets[0][0])
        if not model.graph.node:
            continue
        for _ in range(choose.randint(1, 2)):
            mutate(model, feeds, ops, choose)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                session = InferenceSession(model.SerializeToString(), ONE_THREAD)
                names = [value.name for value in session.get_inputs()]
                session.run(None, dict(zip(names, feeds, strict=False)))
                ran += 1
            except (RuntimeError, ValueError, TypeError) as error:
                assert "internal error" not in str(error), (case.name, error)
    assert 0 < ran < CASES


def models_of_ml() -> list[tuple[onnx.ModelProto, list[Any]]]:
    from tests.inference.test_ml_operators import MAPPINGS, tree_ensemble

    labels = [
        (model_of("LabelEncoder", [x], [kind], attributes, opset=2), [x])
        for x, kind, attributes in MAPPINGS.values()
    ]
    pairs = {"prob_a": [-1.0] * 3, "prob_b": [0.1] * 3}
    return [
        *labels,
        *(tree_regressor(seed, 1 + seed, MODES) for seed in range(3)),
        tree_classifier(0, 3, [0, 1, 2], False, 0.5),
        tree_classifier(1, 2, [0], True),
        tree_ensemble("float32", 1, 2),
        tree_ensemble("float64", 3, 2),
        svm_classifier(0, 3),
        svm_classifier(1, 3, kernel_type="LINEAR", **pairs),
    ]


def test_no_model_of_ml_crashes() -> None:
    choose = random.Random(3)
    models, ran = models_of_ml(), 0
    for _ in range(CASES):
        given, arrays = choose.choice(models)
        model = onnx.ModelProto()
        model.CopyFrom(given)
        feeds = list(arrays)
        for _ in range(choose.randint(1, 3)):
            mutate(model, feeds, ["LabelEncoder", "TreeEnsembleRegressor"], choose)
        try:
            session = InferenceSession(model.SerializeToString(), ONE_THREAD)
            session.run(None, feed_of(feeds))
            ran += 1
        except (RuntimeError, ValueError, TypeError) as error:
            assert "internal error" not in str(error), error
    assert 0 < ran < CASES


def parsed(model: str | bytes) -> onnx.ModelProto:
    assert isinstance(model, bytes)
    return onnx.ModelProto.FromString(model)
