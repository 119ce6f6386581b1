"""Sizes and control flow that depend on data: against stock onnxruntime, segment by segment."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from ortmodule_py import InferenceSession, SessionOptions
from ortmodule_py.inference import Fail, RunOptions
from tests.inference.test_session import ONE_THREAD

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
FOREVER = np.iinfo(np.int64).max

node = helper.make_node


def value(name: str, kind: int, shape: list[Any]) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def constant(name: str, array: Any) -> Any:
    return numpy_helper.from_array(np.asarray(array), name)


def make_model(
    nodes: list[Any], inputs: list[Any], outputs: list[Any], weights: Any = (), opset: int = 18
) -> bytes:
    graph = helper.make_graph(nodes, "data_sizes", inputs, outputs, list(weights))
    model: ModelProto = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9
    )
    return bytes(model.SerializeToString())


def stock(model: bytes) -> onnxruntime.InferenceSession:
    quiet = onnxruntime.SessionOptions()
    quiet.log_severity_level = 3
    quiet.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model, quiet, providers=["CPUExecutionProvider"])


def compare(model: bytes, *all_feeds: dict[str, Any], rtol: float = 1e-5) -> list[Any]:
    """Runs both engines on each of the feeds, in one session each."""
    ours, theirs = InferenceSession(model, ONE_THREAD), stock(model)
    results: list[Any] = []
    for feeds in all_feeds:
        results = ours.run(None, feeds)
        for got, wanted in zip(results, theirs.run(None, feeds), strict=True):
            assert got.dtype == wanted.dtype
            assert got.shape == wanted.shape
            np.testing.assert_allclose(got, wanted, rtol=rtol, atol=1e-6)
    return results


# --- operators ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "int32"])
def test_non_zero_and_what_follows(dtype: str) -> None:
    """The rest is planned for the count, which may be 0 and 1, too."""
    random = np.random.default_rng(0)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes = [
        node("NonZero", ["x"], ["places"]),
        node("Transpose", ["places"], ["rows"], perm=[1, 0]),
        node("GatherND", ["w", "rows"], ["picked"]),
        node("Shape", ["picked"], ["shape"]),
        node("Expand", ["one", "shape"], ["ones"]),
        node("Add", ["picked", "ones"], ["y"]),
        node("ReduceSum", ["y"], ["total"], keepdims=0),
    ]
    model = make_model(
        nodes,
        [value("x", kind, ["a", "b"]), value("w", FLOAT, ["a", "b"])],
        [value("places", INT64, [2, None]), value("y", FLOAT, [None]), value("total", FLOAT, [])],
        [constant("one", np.float32(1))],
    )
    weights = random.standard_normal((5, 7)).astype("float32")
    feeds = []
    for share in (0.5, 0.0, 0.2, 1.0, 0.5):
        x = (random.random((5, 7)) < share).astype(dtype)
        feeds.append({"x": x, "w": weights})
    single = np.zeros((5, 7), dtype)
    single[3, 2] = 1
    compare(model, *feeds, {"x": single, "w": weights})


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_compress_and_unique(axis: int | None) -> None:
    random = np.random.default_rng(1)
    chosen = {} if axis is None else {"axis": axis}
    for is_sorted in (0, 1):
        nodes = [
            node("Compress", ["x", "keep"], ["kept"], **chosen),
            node(
                "Unique", ["kept"], ["y", "first", "inverse", "counts"], sorted=is_sorted, **chosen
            ),
            node("Mul", ["y", "y"], ["squares"]),
        ]
        model = make_model(
            nodes,
            [value("x", FLOAT, ["a", "b"]), value("keep", BOOL, ["k"])],
            [
                value("squares", FLOAT, None),
                value("first", INT64, [None]),
                value("inverse", INT64, [None]),
                value("counts", INT64, [None]),
            ],
        )
        feeds = []
        for count in (6, 4, 5):
            x = random.integers(0, 2, (6, 6)).astype("float32")
            keep = random.random(count) < 0.7
            keep[0] = True
            feeds.append({"x": x, "keep": keep})
        compare(model, *feeds)


def boxes_of(random: Any, batch: int, count: int) -> Any:
    corner = random.random((batch, count, 2)).astype("float32")
    extent = 0.05 + 0.3 * random.random((batch, count, 2)).astype("float32")
    return np.concatenate([corner, corner + extent], axis=2)


@pytest.mark.parametrize("center", [0, 1])
def test_non_max_suppression(center: int) -> None:
    random = np.random.default_rng(2)
    model = make_model(
        [
            node(
                "NonMaxSuppression",
                ["boxes", "scores", "most", "iou", "score"],
                ["chosen"],
                center_point_box=center,
            )
        ],
        [
            value("boxes", FLOAT, ["n", "k", 4]),
            value("scores", FLOAT, ["n", "c", "k"]),
            value("most", INT64, [1]),
            value("iou", FLOAT, [1]),
            value("score", FLOAT, [1]),
        ],
        [value("chosen", INT64, [None, 3])],
    )
    feeds = []
    for most, iou, least in [(5, 0.3, 0.2), (100, 0.5, 0.0), (0, 0.5, 0.1), (3, 0.0, 0.9)]:
        feeds.append(
            {
                "boxes": boxes_of(random, 2, 40),
                "scores": random.random((2, 3, 40)).round(1).astype("float32"),  # equal ones, too
                "most": np.array([most]),
                "iou": np.array([iou], "float32"),
                "score": np.array([least], "float32"),
            }
        )
    compare(model, *feeds)


COUNTED = {
    "Slice": [node("Slice", ["x", "zero", "n"], ["y"])],
    "TopK": [node("TopK", ["x", "n"], ["y", "places"], axis=0)],
    "Tile": [node("Concat", ["n", "one"], ["times"], axis=0), node("Tile", ["x", "times"], ["y"])],
    "Expand": [
        node("Concat", ["n", "one", "one"], ["shape"], axis=0),
        node("Expand", ["x", "shape"], ["y"]),
    ],
    "ConstantOfShape": [node("ConstantOfShape", ["n"], ["y"])],
    "OneHot": [
        node("Squeeze", ["n"], ["depth"]),
        node("OneHot", ["zero", "depth", "pair"], ["y"]),
    ],
    "Pad": [
        node("Concat", ["n", "zero", "zero", "n"], ["pads"], axis=0),
        node("Pad", ["x", "pads"], ["y"]),
    ],
    "Range": [
        node("Squeeze", ["n"], ["limit"]),
        node("Squeeze", ["zero"], ["start"]),
        node("Squeeze", ["one"], ["delta"]),
        node("Range", ["start", "limit", "delta"], ["y"]),
    ],
    "Range of floats": [
        node("Range", ["nought", "sum", "half"], ["y"]),
    ],
}


@pytest.mark.parametrize("name", COUNTED)
def test_operands_that_data_computes(name: str) -> None:
    """A count decides a size, a bound or a number of elements."""
    nodes = [
        node("ReduceSum", ["x"], ["sum"], keepdims=0),
        node("Cast", ["sum"], ["count"], to=INT64),
        node("Unsqueeze", ["count", "zero"], ["n"]),
        *COUNTED[name],
        node("Shape", ["y"], ["y_shape"]),
    ]
    model = make_model(
        nodes,
        [value("x", FLOAT, ["a", "b"])],
        [value("y", INT64 if name == "Range" else FLOAT, None), value("y_shape", INT64, [None])],
        [
            constant("zero", np.array([0])),
            constant("one", np.array([1])),
            constant("pair", np.array([1.0, 2.0], "float32")),
            constant("nought", np.float32(0)),
            constant("half", np.float32(0.5)),
        ],
    )
    feeds = []
    for count in (3, 1, 4, 3):
        x = np.zeros((5, 4), "float32")
        x[:count, 1] = 1
        feeds.append({"x": x})
    compare(model, *feeds)


# --- models ---------------------------------------------------------------------------------------


def detector(classes: int = 4, size: int = 16) -> bytes:
    """An SSD-like export: a backbone, boxes around anchors, scores, NMS, and what it chose."""
    random = np.random.default_rng(3)
    cells = (size // 2) ** 2
    anchors = np.stack(np.meshgrid(np.arange(8), np.arange(8)), -1).reshape(1, cells, 2) / 8.0
    weights = [
        constant("w0", random.standard_normal((8, 3, 3, 3)).astype("float32") / 4),
        constant("w_box", random.standard_normal((4, 8, 1, 1)).astype("float32") / 4),
        constant("w_score", random.standard_normal((classes, 8, 1, 1)).astype("float32")),
        constant("anchors", anchors.astype("float32")),
        constant("to_rows", np.array([0, 0, -1])),
        constant("most", np.array([6])),
        constant("iou", np.array([0.4], "float32")),
        constant("least", np.array([0.5], "float32")),
        constant("columns", np.array([2])),
        constant("pair", np.array([0, 2])),
        constant("two", np.array([2, 2])),
        constant("half", np.float32(0.1)),
        constant("first_axis", np.array([1])),
    ]
    nodes = [
        node("Conv", ["image", "w0"], ["c0"], pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Relu", ["c0"], ["features"]),
        node("Conv", ["features", "w_box"], ["box_map"]),
        node("Reshape", ["box_map", "to_rows"], ["box_rows"]),
        node("Transpose", ["box_rows"], ["offsets"], perm=[0, 2, 1]),
        node("Split", ["offsets", "two"], ["shift", "extent"], axis=2),
        node("Mul", ["shift", "half"], ["small"]),
        node("Add", ["anchors", "small"], ["centers"]),
        node("Exp", ["extent"], ["grown"]),
        node("Mul", ["grown", "half"], ["extents"]),
        node("Concat", ["centers", "extents"], ["boxes"], axis=2),
        node("Conv", ["features", "w_score"], ["score_map"]),
        node("Reshape", ["score_map", "to_rows"], ["logits"]),
        node("Sigmoid", ["logits"], ["scores"]),
        node(
            "NonMaxSuppression",
            ["boxes", "scores", "most", "iou", "least"],
            ["chosen"],
            center_point_box=1,
            name="nms",
        ),
        node("Gather", ["chosen", "pair"], ["image_and_box"], axis=1),
        node("GatherND", ["boxes", "image_and_box"], ["chosen_boxes"]),
        node("GatherND", ["scores", "chosen"], ["chosen_scores"]),
    ]
    return make_model(
        nodes,
        [value("image", FLOAT, ["n", 3, size, size])],
        [
            value("chosen", INT64, [None, 3]),
            value("chosen_boxes", FLOAT, [None, 4]),
            value("chosen_scores", FLOAT, [None]),
        ],
        weights,
    )


def test_a_detector_with_non_max_suppression() -> None:
    random = np.random.default_rng(4)
    images = [random.standard_normal((n, 3, 16, 16)).astype("float32") for n in (1, 2, 1, 3)]
    compare(detector(), *[{"image": image} for image in images], rtol=1e-4)


def decoder(end_token: int = 0, tokens: int = 11, width: int = 6) -> bytes:
    """Greedy decoding: the text grows by a token an iteration, until the end token."""
    random = np.random.default_rng(5)
    body = helper.make_graph(
        [
            node("Gather", ["embedding", "text"], ["rows"]),
            node("ReduceMean", ["rows", "axis_1"], ["mean"], keepdims=0),
            node("MatMul", ["mean", "head"], ["logits"]),
            node("ArgMax", ["logits"], ["next"], axis=1, keepdims=1),
            node("Concat", ["text", "next"], ["text_out"], axis=1),
            node("Equal", ["next", "end"], ["is_end"]),
            node("Not", ["is_end"], ["goes_on"]),
            node("Squeeze", ["goes_on"], ["again_out"]),
        ],
        "body",
        [value("i", INT64, []), value("again", BOOL, []), value("text", INT64, [1, None])],
        [
            value("again_out", BOOL, []),
            value("text_out", INT64, [1, None]),
            value("logits", FLOAT, [1, tokens]),
        ],
    )
    return make_model(
        [
            node("Loop", ["most", "start", "prompt"], ["text_all", "all_logits"], body=body),
            node("Shape", ["text_all"], ["shape"]),
        ],
        [value("prompt", INT64, [1, "n"]), value("most", INT64, [])],
        [
            value("text_all", INT64, [1, None]),
            value("all_logits", FLOAT, [None, 1, tokens]),
            value("shape", INT64, [2]),
        ],
        [
            constant("embedding", random.standard_normal((tokens, width)).astype("float32")),
            constant("head", random.standard_normal((width, tokens)).astype("float32")),
            constant("end", np.array([[end_token]])),
            constant("axis_1", np.array([1])),
            constant("start", np.array(True)),
        ],
    )


def test_an_autoregressive_loop() -> None:
    ends = 0
    for end_token in range(6):
        feeds = [
            {"prompt": np.array([[seed, 3, 5]]), "most": np.array(24)} for seed in range(1, 10, 3)
        ]
        text, _, _ = compare(decoder(end_token), *feeds, rtol=1e-4)
        ends += text.shape[1] < 27
    assert ends  # some text ended before the trip count did


def cached_decoder(by_data: bool, width: int = 8) -> bytes:
    """One attention layer with a cache of keys; `use_cache_branch` says whether there is one."""
    random = np.random.default_rng(6)

    def branch(name: str, nodes: list[Any], key: str) -> Any:
        nodes = [*nodes, node("Identity", [key], [f"keys_{name}"])]
        return helper.make_graph(nodes, name, [], [value(f"keys_{name}", FLOAT, [1, None, width])])

    with_cache = branch("cached", [node("Concat", ["past", "key"], ["joined"], axis=1)], "joined")
    without = branch("fresh", [], "key")
    nodes = [
        node("MatMul", ["x", "w_key"], ["key"]),
        node("MatMul", ["x", "w_query"], ["query"]),
        node("If", ["use_cache_branch"], ["present"], then_branch=with_cache, else_branch=without),
        node("Transpose", ["present"], ["turned"], perm=[0, 2, 1]),
        node("MatMul", ["query", "turned"], ["scores"]),
        node("Softmax", ["scores"], ["weights"], axis=-1),
        node("MatMul", ["weights", "present"], ["y"]),
    ]
    inputs = [value("x", FLOAT, [1, "n", width]), value("past", FLOAT, [1, "m", width])]
    if by_data:  # the model finds out by itself
        nodes = [
            node("ReduceSum", ["past"], ["sum"], keepdims=0),
            node("Greater", ["sum", "zero"], ["use_cache_branch"]),
            *nodes,
        ]
    else:
        inputs.append(value("use_cache_branch", BOOL, [1]))
    return make_model(
        nodes,
        inputs,
        [value("y", FLOAT, [1, "n", width]), value("present", FLOAT, [1, None, width])],
        [
            constant("w_key", random.random((width, width)).astype("float32")),
            constant("w_query", random.standard_normal((width, width)).astype("float32")),
            constant("zero", np.float32(0)),
        ],
    )


@pytest.mark.parametrize("by_data", [False, True])
def test_a_text_model_with_a_cache(by_data: bool) -> None:
    random = np.random.default_rng(7)
    model = cached_decoder(by_data)
    ours, theirs = InferenceSession(model, ONE_THREAD), stock(model)
    past = np.zeros((1, 0 if not by_data else 1, 8), "float32")
    for step in range(6):
        feeds: dict[str, Any] = {
            "x": random.random((1, 4 if step == 0 else 1, 8)).astype("float32"),
            "past": past,
        }
        if not by_data:
            feeds["use_cache_branch"] = np.array([step > 0])
        got, wanted = ours.run(None, feeds), theirs.run(None, feeds)
        for one, other in zip(got, wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
        past = got[1]
    assert past.shape == (1, 9, 8)


# --- control flow ---------------------------------------------------------------------------------


def test_a_branch_that_counts_what_it_finds() -> None:
    """Sizes from data inside of a branch that data chooses."""
    found = helper.make_graph(
        [node("NonZero", ["x"], ["at"]), node("Gather", ["x", "at"], ["y0"])],
        "found",
        [],
        [value("y0", FLOAT, None)],
    )
    all_of_it = helper.make_graph(
        [node("Neg", ["x"], ["y1"])], "all", [], [value("y1", FLOAT, None)]
    )
    model = make_model(
        [
            node("ReduceSum", ["x"], ["sum"], keepdims=0),
            node("Greater", ["sum", "zero"], ["positive"]),
            node("If", ["positive"], ["y"], then_branch=found, else_branch=all_of_it),
            node("Abs", ["y"], ["z"]),
        ],
        [value("x", FLOAT, ["n"])],
        [value("z", FLOAT, None)],
        [constant("zero", np.float32(0))],
    )
    rows = [[1, 0, 2], [-1, 0, -2], [0, 0, 3], [0, 0, 0]]
    compare(model, *[{"x": np.array(row, "float32")} for row in rows])


def counting_loop(trips: Any, condition_by_data: bool) -> bytes:
    """The state doubles until it is large; each iteration also gives a row."""
    body = helper.make_graph(
        [
            node("Add", ["state", "step"], ["state_out"]),
            node("ReduceMax", ["state_out"], ["largest"], keepdims=0),
            node("Less", ["largest", "limit"], ["small"]),
            node("Identity", ["small" if condition_by_data else "again"], ["again_out"]),
            node("Mul", ["state_out", "step"], ["row"]),
        ],
        "body",
        [value("i", INT64, []), value("again", BOOL, []), value("state", FLOAT, [2])],
        [value("again_out", BOOL, []), value("state_out", FLOAT, [2]), value("row", FLOAT, [2])],
    )
    return make_model(
        [node("Loop", ["trips", "start", "x"], ["last", "rows"], body=body, name="counter")],
        [value("x", FLOAT, [2]), value("limit", FLOAT, []), value("start", BOOL, [])],
        [value("last", FLOAT, [2]), value("rows", FLOAT, [None, 2])],
        [constant("trips", np.int64(trips)), constant("step", np.float32(0.5))],
    )


def test_loops_that_data_ends() -> None:
    def feeds(limit: float, start: bool = True) -> dict[str, Any]:
        x = np.array([0.25, 1], "float32")
        return {"x": x, "limit": np.array(limit, "float32"), "start": np.array(start)}

    compare(counting_loop(FOREVER, True), feeds(5), feeds(0), feeds(900), feeds(5, False))
    compare(counting_loop(7, True), feeds(2), feeds(100))
    compare(counting_loop(2000, False), feeds(5))  # too long to be unrolled


def test_a_loop_ends_when_the_caller_wants_it_to() -> None:
    session = InferenceSession(counting_loop(FOREVER, True), ONE_THREAD)
    feeds = {"x": np.zeros(2, "float32"), "limit": np.float32(np.inf), "start": np.array(True)}
    options = RunOptions()
    timer = threading.Timer(0.3, lambda: setattr(options, "terminate", True))
    timer.start()
    with pytest.raises(Fail, match="terminate flag being set to true"):
        session.run(None, feeds, options)
    timer.join()


def test_a_loop_that_nothing_ends_is_refused() -> None:
    session = InferenceSession(counting_loop(FOREVER, False), ONE_THREAD)
    feeds = {"x": np.zeros(2, "float32"), "limit": np.float32(1), "start": np.array(True)}
    with pytest.raises(RuntimeError, match="Loop 'counter': a loop must end"):
        session.run(None, feeds)


@pytest.mark.parametrize(
    "limit, delta, why", [(1e30, 1, "at most 2.53 elements"), (9, 0, "not be 0")]
)
def test_a_range_of_floats_without_an_end_is_refused(limit: float, delta: float, why: str) -> None:
    bounds = [value(name, FLOAT, []) for name in ("start", "limit", "delta")]
    graph = helper.make_graph(
        [node("Range", ["start", "limit", "delta"], ["y"])], "g", bounds, [value("y", FLOAT, ["n"])]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    session = InferenceSession(model.SerializeToString(), ONE_THREAD)
    feeds = {"start": np.float32(0), "limit": np.float32(limit), "delta": np.float32(delta)}
    with pytest.raises(RuntimeError, match=why):
        session.run(None, feeds)


def test_a_long_scan() -> None:
    body = helper.make_graph(
        [
            node("Mul", ["state", "decay"], ["less"]),
            node("Add", ["less", "x_in"], ["state_out"]),
            node("Identity", ["state_out"], ["y_out"]),
        ],
        "body",
        [value("state", FLOAT, [3]), value("x_in", FLOAT, [3])],
        [value("state_out", FLOAT, [3]), value("y_out", FLOAT, [3])],
    )
    for backward, axis in ((0, 0), (1, 1)):
        scan = node(
            "Scan",
            ["zero", "x"],
            ["last", "y"],
            body=body,
            num_scan_inputs=1,
            scan_input_axes=[1],
            scan_input_directions=[backward],
            scan_output_axes=[axis],
            scan_output_directions=[backward],
        )
        model = make_model(
            [scan],
            [value("x", FLOAT, [3, "n"])],
            [value("last", FLOAT, [3]), value("y", FLOAT, [None, None])],
            [constant("zero", np.zeros(3, "float32")), constant("decay", np.float32(0.9))],
        )
        random = np.random.default_rng(8)
        xs = [random.standard_normal((3, n)).astype("float32") for n in (1500, 4)]
        compare(model, *[{"x": x} for x in xs], rtol=1e-4)


# --- memory ---------------------------------------------------------------------------------------


def growing_loop(width: int) -> bytes:
    """A state of `width` numbers more an iteration, until the sum is large."""
    body = helper.make_graph(
        [
            node("Concat", ["state", "more"], ["state_out"], axis=0),
            node("Shape", ["state_out"], ["shape"]),
            node("ReduceMax", ["shape"], ["length"], keepdims=0),
            node("Cast", ["length"], ["rows"], to=FLOAT),
            node("ReduceMax", ["state_out"], ["most"], keepdims=0),
            node("Mul", ["rows", "most"], ["score"]),
            node("Less", ["score", "limit"], ["again_out"]),
        ],
        "body",
        [value("i", INT64, []), value("again", BOOL, []), value("state", FLOAT, [None])],
        [value("again_out", BOOL, []), value("state_out", FLOAT, [None])],
    )
    return make_model(
        [node("Loop", ["", "start", "more"], ["y"], body=body, name="growth")],
        [value("limit", FLOAT, [])],
        [value("y", FLOAT, [None])],
        [constant("more", np.ones(width, "float32")), constant("start", np.array(True))],
    )


def test_each_growth_is_checked_against_the_limit() -> None:
    width, limit = 1 << 16, 8 << 20
    options = SessionOptions()
    options.intra_op_num_threads = 1
    session = InferenceSession(growing_loop(width), options, memory_limit=limit)
    (y,) = session.run(None, {"limit": np.float32(4 * width)})
    assert y.shape == (4 * width,)
    del y
    with pytest.raises(RuntimeError, match="must fit in the memory_limit of 8388608 bytes"):
        session.run(None, {"limit": np.float32(np.inf)})
    assert session._session.held["peak_bytes"] <= limit
    (y,) = session.run(None, {"limit": np.float32(2 * width)})  # the session still works
    assert y.shape == (2 * width,)


def test_the_most_is_told_before_where_there_is_a_bound() -> None:
    session = InferenceSession(detector(), ONE_THREAD)
    report = session.memory({"image": (2, 3, 16, 16)})
    assert not report.exact
    images = np.random.default_rng(9).standard_normal((2, 3, 16, 16)).astype("float32")
    session.run(None, {"image": images})
    assert 0 < session._session.last_peak_bytes <= report.peak_bytes


def test_an_operator_that_follows_a_count_is_refused_by_name_when_the_file_is_opened() -> None:
    model = make_model(
        [
            node("NonZero", ["x"], ["places"]),
            node("Cast", ["places"], ["numbers"], to=FLOAT),
            helper.make_node("Odd", ["numbers"], ["y"], name="odd one", domain="unknown"),
        ],
        [value("x", FLOAT, ["n"])],
        [value("y", FLOAT, None)],
    )
    with pytest.raises(RuntimeError, match=r"unknown.Odd 'odd one': ONNX has no such operator"):
        InferenceSession(model, ONE_THREAD)
