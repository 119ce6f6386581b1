"""What a session says of a model before its first run: what is not valid, and the types of outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortmodule_py import InferenceSession
from ortmodule_py.inference import (
    Fail,
    InvalidArgument,
    InvalidGraph,
    NotImplemented,
)
from tests.inference.test_session import ONE_THREAD

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
X = np.arange(6, dtype="float32").reshape(2, 3)

node, value = helper.make_node, helper.make_tensor_value_info


def model_of(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto] | None = None,
    outputs: list[onnx.ValueInfoProto] | None = None,
    **weights: Any,
) -> bytes:
    graph = helper.make_graph(
        nodes,
        "g",
        inputs or [value("x", FLOAT, [2, 3])],
        outputs or [value("y", FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


def branches_that_read_nothing() -> onnx.NodeProto:
    branch = helper.make_graph(
        [node("Neg", ["nothing"], ["r"])], "b", [], [value("r", FLOAT, None)]
    )
    return node("If", ["flag"], ["y"], then_branch=branch, else_branch=branch)


def branches(*outputs: int, inputs: int = 0) -> bytes:
    """A model of an If whose branches have these numbers of outputs, of different types if equal."""
    graphs = []
    for i, count in enumerate(outputs):
        kind = INT64 if i and count == outputs[0] else FLOAT
        results = [value(f"r{i}{k}", kind, None) for k in range(count)]
        nodes = [node("Cast", ["x"], [result.name], to=kind) for result in results]
        given = [value(f"u{k}", FLOAT, []) for k in range(inputs)]
        graphs.append(helper.make_graph(nodes, "b", given, results))
    made = node("If", ["flag"], ["y"], then_branch=graphs[0], else_branch=graphs[1])
    return model_of([made], flag=np.array(True))


def changed(**fields: Any) -> bytes:
    """A model of Relu with another header."""
    model = onnx.load_from_string(model_of([node("Relu", ["x"], ["y"])]))
    model.ir_version = fields.get("ir_version", 8)
    for domain, version in fields.get("opsets", {}).items():
        for opset in [opset for opset in model.opset_import if opset.domain == domain]:
            model.opset_import.remove(opset)
        if version:
            model.opset_import.append(helper.make_opsetid(domain, version))
    for _ in range(fields.get("functions", 0)):
        opsets = [helper.make_opsetid("", 17)]
        body = [node("Neg", ["a"], ["b"])]
        model.functions.append(helper.make_function("my", "F", ["a"], ["b"], body, opsets))
    if fields.get("functions"):
        model.opset_import.append(helper.make_opsetid("my", 1))
        model.graph.node[0].CopyFrom(
            node("F", ["x"] * fields.get("operands", 1), ["y"], domain="my")
        )
    return bytes(model.SerializeToString())


INVALID: dict[str, tuple[bytes, type[Exception], str]] = {
    "name": (
        model_of([node("Add", ["x", "nothing"], ["y"], name="it")]),
        InvalidArgument,
        "nothing of the name 'nothing', which Add 'it' reads",
    ),
    "name in a branch": (
        model_of([branches_that_read_nothing()], [value("flag", TensorProto.BOOL, [])]),
        InvalidGraph,
        "nothing of the name 'nothing', which Neg 'r' reads",
    ),
    "output": (model_of([node("Relu", ["x"], ["z"])]), InvalidGraph, "nothing of the name 'y'"),
    "cycle": (
        model_of(
            [node("Add", ["x", "b"], ["a"]), node("Relu", ["a"], ["b"]), node("Neg", ["b"], ["y"])]
        ),
        InvalidGraph,
        "Add 'a' is needed to compute its own input 'b'",
    ),
    "one name twice": (
        model_of([node("Relu", ["x"], ["y"]), node("Neg", ["x"], ["y"])]),
        InvalidGraph,
        "found another 'y', an output of Neg 'y'",
    ),
    "operator": (
        model_of([node("Reluu", ["x"], ["y"])]),
        InvalidGraph,
        "ONNX has no such operator",
    ),
    "operator of others": (
        model_of([node("Relu", ["x"], ["y"], domain="my.ops")]),
        InvalidGraph,
        "my.ops.Relu 'y': ONNX has no such operator",
    ),
    "attribute missing": (
        model_of([node("Cast", ["x"], ["y"])]),
        InvalidGraph,
        "attribute 'to' must be given",
    ),
    "attribute of another type": (
        model_of([node("Softmax", ["x"], ["y"], axis=1.5)]),
        InvalidGraph,
        "attribute 'axis' must be an integer",
    ),
    "operand missing": (
        model_of([node("Add", ["x"], ["y"])]),
        InvalidGraph,
        "operand 1 must be given",
    ),
    "types": (
        model_of([node("Add", ["x", "k"], ["y"])], k=np.zeros((2, 3), "int64")),
        InvalidGraph,
        "operands must have the same type",
    ),
    "sizes": (
        model_of([node("MatMul", ["x", "k"], ["y"])], k=np.zeros((4, 5), "float32")),
        InvalidGraph,
        r"inner sizes must agree, but found \[2,3\] and \[4,5\]",
    ),
    "axis": (
        model_of([node("Softmax", ["x"], ["y"], axis=7)]),
        InvalidGraph,
        "an axis must be within rank 2, but found 7",
    ),
    "ir version": (changed(ir_version=15), InvalidGraph, "ir_version must be at most 14"),
    "no operator set": (changed(opsets={"": 0}), InvalidGraph, "must name its operator sets"),
    "operator set": (
        changed(opsets={"": 29}),
        InvalidGraph,
        "operator set of 'ai.onnx' must be from 1 to 28, but found 29",
    ),
    "operator set below the first": (
        changed(opsets={"": -1}),
        InvalidGraph,
        "operator set of 'ai.onnx' must be from 1 to 28, but found -1",
    ),
    "operands of a node whose rule names none": (
        model_of([node("Transpose", ["x"], ["y"], perm=[0, 0])]),
        InvalidGraph,
        r"perm must name each axis once, but found 'x' float\[2,3\], perm=\[0,0\]",
    ),
    "size of blocks": (
        model_of([node("DepthToSpace", ["k"], ["y"], blocksize=0)], k=np.zeros((1, 4, 2, 2), "f")),
        InvalidGraph,
        "blocksize must be positive, but found 0",
    ),
    "letters of an equation": (
        model_of([node("Einsum", ["x"], ["y"], equation="i\u00a3->i")]),
        InvalidGraph,
        "must have letters and '...', but found 'i\u00a3'",
    ),
    "operator set of others": (
        changed(opsets={"com.microsoft": 2}),
        InvalidGraph,
        "of 'com.microsoft' must be from 1 to 1, but found 2",
    ),
    "one function twice": (
        changed(functions=2),
        InvalidGraph,
        "each function must have a name of its own, but found another 'F'",
    ),
    "operands of a function": (
        changed(functions=1, operands=2),
        InvalidGraph,
        "it must have at most 1 operands, but found 2",
    ),
    "one input twice": (
        model_of([node("Relu", ["x"], ["y"])], [value("x", FLOAT, [2, 3])] * 2),
        InvalidGraph,
        "each input must have a name of its own, but found another 'x'",
    ),
    "type of an initializer": (
        model_of(
            [node("Add", ["x", "w"], ["y"])],
            [value("x", FLOAT, [2, 3]), value("w", INT64, [2, 3])],
            w=X,
        ),
        InvalidGraph,
        "must have the type and sizes of its input, but 'w' has others",
    ),
    "sizes of an initializer": (
        model_of(
            [node("Add", ["x", "w"], ["y"])],
            [value("x", FLOAT, [2, 3]), value("w", FLOAT, [1, 3])],
            w=X,
        ),
        InvalidGraph,
        "must have the type and sizes of its input, but 'w' has others",
    ),
    "outputs of branches": (branches(2, 1), InvalidGraph, "as many outputs, but found 2 and 1"),
    "types of branches": (branches(1, 1), InvalidGraph, "one type, but found float and int64"),
    "inputs of a branch": (branches(1, 2, inputs=1), InvalidGraph, "must have no inputs"),
    "type of an output": (
        model_of([node("Relu", ["x"], ["y"])], outputs=[value("y", INT64, [2, 3])]),
        InvalidGraph,
        r"the type that the file declares, int64, but is float",
    ),
}


@pytest.mark.parametrize("what", INVALID)
def test_an_invalid_model_is_refused_when_it_is_opened(what: str) -> None:
    """Where onnxruntime has another class it is Fail, which ours are, too."""
    model, kind, text = INVALID[what]
    with pytest.raises(kind, match=text):
        InferenceSession(model, ONE_THREAD)
    with pytest.raises(Exception) as stock:
        onnxruntime.InferenceSession(model)
    assert type(stock.value).__name__ in (kind.__name__, Fail.__name__)


def test_an_operator_that_the_engine_lacks_is_no_mistake_of_the_model() -> None:
    lacks = model_of([node("AttnLSTM", ["x"], ["y"], domain="com.microsoft")])
    with pytest.raises(NotImplemented, match="the engine has no such operator"):
        InferenceSession(lacks, ONE_THREAD)


def test_feeds_that_a_model_of_open_sizes_cannot_take() -> None:
    model = model_of(
        [node("MatMul", ["x", "z"], ["y"])],
        [value("x", FLOAT, [2, 3]), value("z", FLOAT, ["a", "b"])],
    )
    session = InferenceSession(model, ONE_THREAD)
    with pytest.raises(Fail, match=r"valid for the types and sizes of the feeds.*\n.*inner sizes"):
        session.run(None, {"x": X, "z": X})
    (y,) = session.run(None, {"x": X, "z": X.T})
    np.testing.assert_array_equal(y, X @ X.T)


def test_a_model_whose_input_decides_sizes_waits_for_it() -> None:
    """Its sizes are fixed, but not the contents of its shape: the early import says nothing."""
    model = model_of(
        [node("Reshape", ["x", "shape"], ["y"])],
        [value("x", FLOAT, [2, 3]), value("shape", INT64, [2])],
    )
    session = InferenceSession(model, ONE_THREAD)
    for sizes in [(3, 2), (6, 1), (1, 6)]:
        (y,) = session.run(None, {"x": X, "shape": np.array(sizes)})
        np.testing.assert_array_equal(y, X.reshape(sizes))
    with pytest.raises(Fail, match=r"of the feeds.*\n.*the shape must have 6 elements"):
        session.run(None, {"x": X, "shape": np.array([4, 5])})


def test_a_replaced_initializer_is_no_part_of_the_early_import() -> None:
    model = model_of(
        [node("Add", ["x", "k"], ["y"])],
        [value("x", FLOAT, [2, 3]), value("k", FLOAT, [3])],
        k=np.ones(3, "float32"),
    )
    session = InferenceSession(model, ONE_THREAD)
    (first,) = session.run(None, {"x": X, "k": np.full(3, 5, "float32")})
    np.testing.assert_array_equal(first, X + 5)
    (second,) = session.run(None, {"x": X})
    np.testing.assert_array_equal(second, X + 1)


TYPED: dict[str, Callable[[], bytes]] = {
    "sizes": lambda: model_of([node("Concat", ["x", "x"], ["y"], axis=1)]),
    "type": lambda: model_of(
        [node("Shape", ["x"], ["y"])], outputs=[onnx.ValueInfoProto(name="y")]
    ),
    "one size of an input": lambda: model_of(
        [node("Transpose", ["x"], ["y"])],
        [value("x", FLOAT, ["a", 3])],
        [value("y", FLOAT, [None, "k"])],
    ),
    "a number for a name": lambda: model_of(
        [node("Transpose", ["x"], ["y"])],
        [value("x", FLOAT, ["a", 3])],
        [value("y", FLOAT, ["u", "k"])],
    ),
    "names of inputs": lambda: model_of(
        [node("Transpose", ["x"], ["y"])], [value("x", FLOAT, ["the rows", "b"])]
    ),
    "a size that is computed": lambda: model_of(
        [node("Concat", ["x", "x"], ["y"], axis=0)], [value("x", FLOAT, ["a", 3])]
    ),
    "a size without a name": lambda: model_of(
        [node("Relu", ["x"], ["y"])], [value("x", FLOAT, [None, 64])]
    ),
    "weights": lambda: model_of(
        [node("MatMul", ["x", "k"], ["y"])],
        [value("x", FLOAT, ["batch", "time", "wide"])],
        k=np.zeros((16, 5), "float32"),
    ),
}


@pytest.mark.parametrize("what", TYPED)
def test_types_of_outputs_that_the_file_leaves_out(what: str) -> None:
    model = TYPED[what]()
    ours = InferenceSession(model, ONE_THREAD).get_outputs()
    theirs = onnxruntime.InferenceSession(model).get_outputs()
    assert [(o.name, o.type, o.shape) for o in ours] == [(o.name, o.type, o.shape) for o in theirs]


def test_sizes_that_data_decides_stay_open() -> None:
    model = model_of([node("NonZero", ["x"], ["y"])], outputs=[value("y", INT64, None)])
    session = InferenceSession(model, ONE_THREAD)
    assert session.get_outputs()[0].type == "tensor(int64)"
    assert session.run(None, {"x": X})[0].shape == (2, 5)


@pytest.mark.parametrize("sizes", [(), (1,), (2, 3)])
def test_an_input_declared_without_sizes_takes_all(sizes: tuple[int, ...]) -> None:
    """As in onnxruntime: files write an empty shape where they know none."""
    model = model_of([node("Neg", ["x"], ["y"])], [value("x", FLOAT, [])], [value("y", FLOAT, [])])
    feeds = {"x": np.full(sizes, 2, "float32")}
    (ours,) = InferenceSession(model, ONE_THREAD).run(None, feeds)
    (theirs,) = onnxruntime.InferenceSession(model).run(None, feeds)
    np.testing.assert_array_equal(ours, theirs, strict=True)


def test_a_model_without_outputs_runs_nothing() -> None:
    model = onnx.load_from_string(model_of([node("Relu", ["x"], ["y"])]))
    del model.graph.output[:]
    session = InferenceSession(model.SerializeToString(), ONE_THREAD)
    with pytest.raises(InvalidArgument, match="a model must have an output, but found none"):
        session.run(None, {"x": X})


def test_a_type_that_no_kernel_takes_is_named() -> None:
    sizes = [2, 3]
    model = model_of(
        [node("Sqrt", ["x"], ["y"])], [value("x", INT64, sizes)], [value("y", INT64, sizes)]
    )
    with pytest.raises(NotImplemented, match="Sqrt needs a kernel, but found none that takes it"):
        InferenceSession(model, ONE_THREAD).run(None, {"x": np.ones(sizes, "int64")})
