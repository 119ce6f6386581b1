"""Models whose nodes and feeds contradict each other: an error or a result, never a crash."""

from __future__ import annotations

import random
import warnings
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto

from ortmodule_py import InferenceSession
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


def parsed(model: str | bytes) -> onnx.ModelProto:
    assert isinstance(model, bytes)
    return onnx.ModelProto.FromString(model)
