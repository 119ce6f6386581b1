"""What an idle session keeps for each node of its model, and that it runs other sizes afterwards."""

from __future__ import annotations

import gc
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortmodule_py import InferenceSession
from tests.inference.test_session_memory import content, in_a_process


def test_an_idle_session_keeps_its_nodes_packed(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content(layers=150, width=96))  # weights of mapped blocks, not of the heap
    in_a_process(
        """
import ctypes
class Heap(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "abcdefghij"]
def heap():
    gc.collect()
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = Heap
    return mallinfo().h  # bytes in use
x = np.ones((4, 96), "float32")
def idle():
    session = InferenceSession(sys.argv[1], options)
    session.run(None, {"x": x})
    time.sleep(1)
    return session
del (first := [idle()])[0]  # what the process keeps
before = heap()
session = idle()
assert (heap() - before) / 450 <= 300, (heap() - before) / 450  # for each node
session.run(None, {"x": x[:2]})
""",
        str(path),
    )


def model(nodes: list[Any], outputs: list[str]) -> bytes:
    table = np.random.default_rng(0).standard_normal((64, 8)).astype("float32")
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 8])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [
            numpy_helper.from_array(table, "table"),
            numpy_helper.from_array(np.array([0], "int64"), "zero"),
        ],
    )
    opsets = [helper.make_opsetid("", 17)]
    content: bytes = helper.make_model(
        graph, opset_imports=opsets, ir_version=9
    ).SerializeToString()
    return content


def branch(op: str) -> Any:
    info = helper.make_tensor_value_info(f"in_{op}", TensorProto.FLOAT, None)
    return helper.make_graph([helper.make_node(op, ["x"], [f"in_{op}"])], op, [], [info])


MODELS = {
    # A size of 1 and one of 4 are imports of their own.
    "sizes": [
        helper.make_node("Shape", ["x"], ["s"], end=1),
        helper.make_node("Range", ["z0", "n", "one"], ["places"], "range"),
        helper.make_node("Gather", ["table", "places"], ["rows_of_table"]),
        helper.make_node("Add", ["x", "rows_of_table"], ["a"]),
        helper.make_node("Softmax", ["a"], ["y"], axis=-1),
    ],
    # What follows NonZero, and the branch, are segments.
    "segments": [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("NonZero", ["r"], ["found"]),
        helper.make_node("GatherND", ["r", "places"], ["picked"]),
        helper.make_node("ReduceSum", ["r"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["sum", "limit"], ["large"]),
        helper.make_node(
            "If", ["large"], ["y"], then_branch=branch("Tanh"), else_branch=branch("Exp")
        ),
    ],
}
MODELS["sizes"].insert(1, helper.make_node("Squeeze", ["s", "zero"], ["n"]))
for name, value in (("z0", 0), ("one", 1)):
    MODELS["sizes"].insert(0, helper.make_node("Constant", [], [name], value_int=value))
MODELS["segments"].insert(2, helper.make_node("Transpose", ["found"], ["places"], perm=[1, 0]))
MODELS["segments"].insert(0, helper.make_node("Constant", [], ["limit"], value_float=8.0))


@pytest.mark.parametrize("kind", MODELS)
def test_an_idle_session_runs_other_sizes(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(model(MODELS[kind], ["y", "picked"] if kind == "segments" else ["y"]))
    session, stock = InferenceSession(path), onnxruntime.InferenceSession(path)
    random = np.random.default_rng(1)
    for rows in (4, 1, 7, 1, 4):
        gc.collect()
        time.sleep(0.7)  # the session packs its graphs and the model's nodes
        x = random.standard_normal((rows, 8)).astype("float32") * rows
        for here, there in zip(session.run(None, {"x": x}), stock.run(None, {"x": x}), strict=True):
            np.testing.assert_allclose(here, there, rtol=1e-5, atol=1e-6)
