"""What the segments of a run pass on to each other, and what callers get of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from ortmodule_py import InferenceSession, SessionOptions
from tests.inference.test_data_sizes import (
    BOOL,
    FLOAT,
    FOREVER,
    INT64,
    compare,
    constant,
    make_model,
    node,
    value,
)
from tests.inference.test_session import ONE_THREAD


def test_a_result_that_is_an_element_of_a_value() -> None:
    """The last state of a backward Scan is the first element of what it scans."""
    body = helper.make_graph(
        [node("NonZero", ["e"], ["places"]), node("ReduceSum", ["places"], ["sum"], keepdims=0)],
        "body",
        [value("s", FLOAT, []), value("e", FLOAT, [])],
        [value("e", FLOAT, []), value("sum", INT64, [])],
    )
    model = make_model(
        [
            node("Relu", ["x"], ["r"]),
            node(
                "Scan",
                ["s0", "r"],
                ["s1", "y"],
                body=body,
                num_scan_inputs=1,
                scan_input_directions=[1],
            ),
        ],
        [value("x", FLOAT, [3]), value("s0", FLOAT, [])],
        [value("s1", FLOAT, None)],
    )
    feeds = {"x": np.array([4, 5, 6], "float32"), "s0": np.array(1, "float32")}
    (last,) = InferenceSession(model, ONE_THREAD).run(None, feeds)
    assert last.shape == () and last == 4  # onnxruntime 1.32 returns memory that it never wrote


def test_the_memory_of_a_run_whose_later_segment_reads_a_feed_with_strides() -> None:
    model = make_model(
        [
            node("NonZero", ["x"], ["places"]),
            node("Expand", ["one", "sizes"], ["wide"]),
            node("ReduceSum", ["places"], ["sum"], keepdims=0),
            node("Cast", ["sum"], ["number"], to=FLOAT),
            node("Add", ["wide", "number"], ["y"]),
        ],
        [value("x", FLOAT, ["n"]), value("sizes", INT64, [2])],
        [value("y", FLOAT, None)],
        [constant("one", np.ones((1, 1), "float32"))],
    )
    session = InferenceSession(model, ONE_THREAD)
    x, sizes = np.ones(5, "float32"), np.array([300, 0, 400, 0])
    strided = session.memory({"x": x, "sizes": sizes[::2]})
    plain = session.memory({"x": x, "sizes": sizes[::2].copy()})
    assert plain.peak_bytes >= 300 * 400 * 4
    assert plain.peak_bytes <= strided.peak_bytes <= plain.peak_bytes + 1024


def test_padding_computed_from_sizes_is_known_before_the_run() -> None:
    """TensorFlow's padding "same" for a stride of 2, as timm's models compute it, by Clip; and by the
    other operators that numbers made of sizes go through."""
    nodes = [
        node("Shape", ["x"], ["sizes"]),
        node("Gather", ["sizes", "two"], ["n"]),
        node("Cast", ["n"], ["real"], to=FLOAT),
        node("Div", ["real", "real_two"], ["half"]),
        node("Sum", ["half", "real_zero"], ["same_half"]),
        node("Ceil", ["same_half"], ["up"]),
        node("Cast", ["up"], ["windows"], to=INT64),
        node("Sub", ["windows", "one"], ["steps"]),
        node("Mul", ["steps", "two"], ["reach"]),
        node("Add", ["reach", "three"], ["end"]),
        node("Sub", ["end", "n"], ["missing"]),
        node("Clip", ["missing", "zero", ""], ["total"]),
        node("Sign", ["total"], ["some"]),
        node("Max", ["some", "zero", "total"], ["after"]),
        node("Unsqueeze", ["after", "axis"], ["last"]),
        node("Concat", ["zeros", "last"], ["pads"], axis=0),
        node("Pad", ["x", "pads"], ["y"]),
    ]
    numbers = {"two": 2, "one": 1, "three": 3, "zero": 0}
    model = make_model(
        nodes,
        [value("x", FLOAT, ["batch", 3, "n"])],
        [value("y", FLOAT, None)],
        [
            *(constant(name, np.array(number)) for name, number in numbers.items()),
            constant("real_two", np.array(2, "float32")),
            constant("real_zero", np.array(0, "float32")),
            constant("axis", np.array([0])),
            constant("zeros", np.array([0, 0, 0, 0, 0])),
        ],
    )
    session = InferenceSession(model, ONE_THREAD)
    stock = onnxruntime.InferenceSession(model)
    for n in (7, 8, 1):
        feeds = {"x": np.ones((2, 3, n), "float32")}
        assert session.memory(feeds).exact
        (ours,), (expected,) = session.run(None, feeds), stock.run(None, feeds)
        np.testing.assert_array_equal(ours, expected)


def test_a_condition_that_is_a_matrix_of_one_element() -> None:
    """As a sum that keeps its dimensions gives it."""

    def branch(name: str, op: str) -> onnx.GraphProto:
        return helper.make_graph(
            [node(op, ["a", "b"], [name])], name, [], [value(name, FLOAT, None)]
        )

    model = make_model(
        [
            node("ReduceSum", ["a"], ["of_a"]),
            node("ReduceSum", ["b"], ["of_b"]),
            node("Greater", ["of_a", "of_b"], ["more"]),
            node(
                "If",
                ["more"],
                ["y"],
                then_branch=branch("t", "Add"),
                else_branch=branch("e", "Sub"),
            ),
        ],
        [value("a", FLOAT, ["n", 2]), value("b", FLOAT, ["n", 2])],
        [value("y", FLOAT, ["n", 2])],
    )
    session = InferenceSession(model, ONE_THREAD)
    a, b = np.array([[0, 3], [7, 0]], "float32"), np.array([[1, 0], [2, 0]], "float32")
    np.testing.assert_array_equal(session.run(None, {"a": a, "b": b})[0], a + b)
    np.testing.assert_array_equal(session.run(None, {"a": b, "b": a})[0], b - a)


def test_nodes_in_another_order_than_they_are_computed() -> None:
    """As some tools write them, within branches as well."""
    branches = {}
    for name, op in (("then_branch", "Abs"), ("else_branch", "Relu")):
        nodes = [node(op, ["n"], [name]), node("Neg", ["late"], ["n"])]
        branches[name] = helper.make_graph(nodes, name, [], [value(name, FLOAT, None)])
    model = make_model(
        [
            node("Exp", ["chosen"], ["y"]),
            node("If", ["more"], ["chosen"], **branches),
            node("Greater", ["sum", "zero"], ["more"]),
            node("ReduceSum", ["late"], ["sum"], keepdims=0),
            node("Mul", ["x", "x"], ["late"]),
        ],
        [value("x", FLOAT, ["n"])],
        [value("y", FLOAT, ["n"])],
        [constant("zero", np.zeros((), "float32"))],
    )
    feeds = {"x": np.array([0.5, -1], "float32")}
    (y,) = InferenceSession(model, ONE_THREAD).run(None, feeds)
    np.testing.assert_allclose(y, np.exp(feeds["x"] ** 2), rtol=1e-6)


def test_a_function_whose_nodes_are_in_another_order() -> None:
    opset = helper.make_opsetid("", 17)
    function = helper.make_function(
        "own", "F", ["p"], ["q"], [node("Neg", ["r"], ["q"]), node("Exp", ["p"], ["r"])], [opset]
    )
    graph = helper.make_graph(
        [helper.make_node("F", ["x"], ["y"], domain="own")],
        "calls",
        [value("x", FLOAT, ["n"])],
        [value("y", FLOAT, ["n"])],
    )
    model = helper.make_model(
        graph, opset_imports=[opset, helper.make_opsetid("own", 1)], functions=[function]
    )
    (y,) = InferenceSession(model.SerializeToString(), ONE_THREAD).run(
        None, {"x": np.zeros(2, "float32")}
    )
    np.testing.assert_array_equal(y, [-1, -1])


def test_a_cycle_is_named() -> None:
    model = make_model(
        [node("Add", ["x", "b"], ["a"]), node("Neg", ["a"], ["b"]), node("Relu", ["x"], ["y"])],
        [value("x", FLOAT, [2])],
        [value("y", FLOAT, [2])],
    )
    with pytest.raises(RuntimeError, match=r"a cycle, but Add 'a' is needed to compute .* 'b'"):
        InferenceSession(model, ONE_THREAD)


@pytest.mark.parametrize("known", [True, False])
def test_results_of_no_iterations_that_the_body_does_not_declare(known: bool) -> None:
    """Their rank is that of what the body would compute."""
    nodes = [
        node("Add", ["s", "w"], ["s_out"]),
        node("Identity", ["c"], ["c_out"]),
        node("Transpose", ["x"], ["y"], perm=[1, 0]),
    ]
    body = helper.make_graph(
        nodes,
        "body",
        [value("i", INT64, []), value("c", BOOL, []), value("s", FLOAT, None)],
        [value("c_out", BOOL, []), value("s_out", FLOAT, None), value("y", FLOAT, None)],
    )
    model = make_model(
        [node("Loop", ["m", "", "x"], ["last", "all"], body=body)],
        [value("x", FLOAT, ["n", 3]), *([] if known else [value("m", INT64, [])])],
        [value("last", FLOAT, None), value("all", FLOAT, None)],
        [constant("w", np.ones(3, "float32")), *([constant("m", np.int64(0))] if known else [])],
    )
    x = np.ones((2, 3), "float32")
    feeds = {"x": x} if known else {"x": x, "m": np.array(0)}
    compare(model, feeds)


@pytest.mark.parametrize("kind", [INT64, BOOL, TensorProto.INT32])
@pytest.mark.parametrize(
    "nodes",
    [
        [node("Concat", ["x", "x"], ["z"], axis=0), node("Shape", ["z"], ["y"])],
        [node("Concat", ["x", "x"], ["z"], axis=0), node("Size", ["z"], ["y"])],
        [node("Slice", ["x", "one", "end"], ["z"]), node("Shape", ["z"], ["y"])],
        [node("Concat", ["x", "x"], ["z"], axis=0), node("ConstantOfShape", ["s"], ["y"])],
        [node("Unsqueeze", ["x", "zero"], ["z"]), node("Shape", ["z"], ["y"])],
    ],
    ids=["joined", "counted", "cut", "filled", "raised"],
)
def test_the_length_of_a_list_that_nothing_else_reads(
    nodes: list[onnx.NodeProto], kind: int
) -> None:
    """An import that knows the elements must not serve another number of them."""
    nodes = list(nodes)
    if nodes[1].op_type == "ConstantOfShape":
        nodes.insert(1, node("Shape", ["z"], ["s"]))
    model = make_model(
        nodes,
        [value("x", kind, ["n"])],
        [onnx.ValueInfoProto(name="y")],
        [constant("zero", [0]), constant("one", [1]), constant("end", [FOREVER])],
    )
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    compare(model, *({"x": np.ones(length, dtype)} for length in (5, 3, 0, 1, 4, 0, 3)))


def test_a_profile_of_a_run_in_segments(tmp_path: Path) -> None:
    options = SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "trace")
    model = make_model(
        [node("NonZero", ["x"], ["n"]), node("Neg", ["n"], ["y"])],
        [value("x", FLOAT, ["n"])],
        [value("y", INT64, None)],
    )
    session = InferenceSession(model, options)
    session.run(None, {"x": np.ones(3, "float32")})
    events = json.loads(Path(session.end_profiling()).read_text())
    names = [event["name"] for event in events if event["cat"] == "Session"]
    assert names[0] == "session_initialization" and names.count("model_run") == 1


def test_a_part_has_one_plan_for_all_sizes_that_it_does_not_read() -> None:
    """A state that grows from call to call, which only what follows a count reads."""
    nodes = [
        node("MatMul", ["x", "w"], ["product"]),
        node("NonZero", ["product"], ["places"]),
        node("Cast", ["places"], ["numbers"], to=FLOAT),
        node("Concat", ["past", "numbers"], ["present"], axis=1),
    ]
    model = make_model(
        nodes,
        [value("x", FLOAT, ["n", 8]), value("past", FLOAT, [2, "m"])],
        [value("present", FLOAT, [2, None])],
        [constant("w", np.eye(8, dtype="float32"))],
    )
    x = np.random.default_rng(0).standard_normal((3, 8)).astype("float32")

    def feeds(length: int) -> dict[str, Any]:
        return {"x": x, "past": np.full((2, length), 2, "float32")}

    compare(model, *[feeds(length) for length in (0, 1, 5, 3)])
    session = InferenceSession(model, ONE_THREAD)
    session.run(None, feeds(1))
    plans = session._session.held["plans_bytes"]
    for length in range(2, 40):
        session.run(None, feeds(length))
    assert session._session.held["plans_bytes"] == plans
