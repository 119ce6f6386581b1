"""Runs that do not fit in the session's limit: some rows of the batch at a time, within the limit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from ortmodule_py import InferenceSession, SessionOptions
from ortmodule_py.inference import OrtValue, RuntimeException
from tests.inference.models import model_bytes

Array = np.ndarray[Any, Any]
Model = tuple[bytes, Callable[[int], dict[str, Array]]]
ROWS = 13


def random(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("float32") * 0.3


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> Any:
    return helper.make_node(op, inputs.split(), outputs.split(), **attributes)


def cnn() -> Model:
    nodes = [
        node("Conv", "x k b", "c", pads=[1, 1, 1, 1]),
        node("BatchNormalization", "c s t m v", "n"),
        node("Relu", "n", "r"),
        node("MaxPool", "r", "p", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", "p k2", "q", pads=[1, 1, 1, 1], group=2),
        node("Add", "q p", "a"),
        node("GlobalAveragePool", "a", "g"),
        node("Flatten", "g", "f"),
        node("Gemm", "f w", "l", transB=1),
        node("Softmax", "l", "y"),
        node("ArgMax", "y", "best", axis=1, keepdims=0),
    ]
    weights = {
        "k": random(8, 3, 3, 3), "b": random(8), "s": random(8), "t": random(8), "m": random(8),
        "v": random(8) ** 2, "k2": random(8, 4, 3, 3), "w": random(10, 8),
    }  # fmt: skip
    model = model_bytes(nodes, {"x": (TensorProto.FLOAT, ["n", 3, 32, 32])}, ["y", "best"], weights)
    return model, lambda rows: {"x": random(rows, 3, 32, 32)}


def encoder() -> Model:
    """Token ids and a mask; heads by Reshape with sizes from Shape; the time comes first at the end."""
    nodes = [
        node("Gather", "table ids", "e"),
        node("LayerNormalization", "e s", "h"),
        node("MatMul", "h w", "p"),
        node("Shape", "ids", "sizes"),
        node("Concat", "sizes heads", "split", axis=0),
        node("Reshape", "p split", "q"),
        node("Transpose", "q", "qt", perm=[0, 2, 1, 3]),
        node("Transpose", "q", "kt", perm=[0, 2, 3, 1]),
        node("MatMul", "qt kt", "scores"),
        node("Unsqueeze", "mask one_two", "m"),
        node("Add", "scores m", "masked"),
        node("Softmax", "masked", "a"),
        node("MatMul", "a qt", "o"),
        node("Transpose", "o", "ot", perm=[2, 0, 1, 3]),
        node("Reshape", "ot merged", "y"),
    ]
    weights = {
        "table": random(50, 32), "s": random(32), "w": random(32, 32), "heads": np.array([4, 8]),
        "one_two": np.array([1, 2]), "merged": np.array([0, 0, 32]),
    }  # fmt: skip
    inputs = {
        "ids": (TensorProto.INT64, ["n", "time"]),
        "mask": (TensorProto.FLOAT, ["n", "time"]),
    }
    ids = np.random.default_rng(0).integers(0, 50, (64, 17))
    return model_bytes(nodes, inputs, ["y"], weights), lambda rows: {
        "ids": ids[:rows],
        "mask": np.where(ids[:rows] > 40, -1e4, 0).astype("float32"),
    }


def indexed_mask(spelling: str) -> Model:
    """`mask[row, key]` with the numbers of rows and keys, as torch's exporters write the masks of
    transformers; and the place of the last token in use, `x[row, last]`."""
    mask = {
        "flat": [
            node("Mul", "row time", "starts"),
            node("Add", "key starts", "places"),
            node("Flatten", "mask", "flat", axis=0),
            node("Reshape", "flat all", "elements"),
            node("Gather", "elements places", "read"),
        ],
        "GatherND": [
            node("Max", "row key", "both"),
            node("Shape", "both", "spread"),
            node("Expand", "row spread", "rows"),
            node("Expand", "key spread", "keys"),
            node("Unsqueeze", "rows end", "rows_1"),
            node("Unsqueeze", "keys end", "keys_1"),
            node("Concat", "rows_1 keys_1", "places", axis=-1),
            node("GatherND", "mask places", "read"),
        ],
    }
    nodes = [
        node("Shape", "mask", "sizes"),
        node("Gather", "sizes zero", "count"),
        node("Gather", "sizes one", "time"),
        node("Range", "zero count one", "row_numbers"),
        node("Range", "zero time one", "key_numbers"),
        node("Unsqueeze", "row_numbers behind", "row"),
        node("Unsqueeze", "key_numbers before", "key"),
        *mask[spelling],
        node("Transpose", "x", "k", perm=[0, 2, 1]),
        node("MatMul", "x k", "s"),
        node("Unsqueeze", "s one_axis", "scores"),
        node("Where", "read scores low", "seen"),
        node("Softmax", "seen", "p"),
        node("Unsqueeze", "x one_axis", "v"),
        node("MatMul", "p v", "y"),
        node("Cast", "mask", "numbers", to=TensorProto.INT64),
        node("CumSum", "numbers one", "counted"),
        node("ArgMax", "counted", "last", axis=1, keepdims=1),
        node("Unsqueeze", "row_numbers end", "row_column"),
        node("Concat", "row_column last", "row_last", axis=1),
        node("GatherND", "x row_last", "z"),
    ]
    weights = {
        "zero": np.array(0), "one": np.array(1), "low": np.float32(-1e9), "all": np.array([-1]),
        "behind": np.array([1, 2, 3]), "before": np.array([0, 1, 2]), "end": np.array([-1]),
        "one_axis": np.array([1]),
    }  # fmt: skip
    inputs = {
        "x": (TensorProto.FLOAT, ["n", "t", 32]),
        "mask": (TensorProto.BOOL, ["n", "t"]),
    }
    lengths = np.random.default_rng(1).integers(1, 40, 64)
    return model_bytes(nodes, inputs, ["y", "z"], weights), lambda rows: {
        "x": random(rows, 40, 32),
        "mask": np.arange(40) < lengths[:rows, None],
    }


def sampled_images() -> Model:
    nodes = [
        node("Conv", "x k", "c", pads=[1, 1, 1, 1]),
        node("GridSample", "c grid", "y", padding_mode="border"),
    ]
    inputs = {
        "x": (TensorProto.FLOAT, ["n", 3, 16, 16]),
        "grid": (TensorProto.FLOAT, ["n", 9, 7, 2]),
    }
    model = model_bytes(nodes, inputs, ["y"], {"k": random(16, 3, 3, 3)})
    return model, lambda rows: {"x": random(rows, 3, 16, 16), "grid": random(rows, 9, 7, 2) * 3}


def recurrent() -> Model:
    nodes = [node("LSTM", "x w r", "y h", hidden_size=16), node("Tanh", "y", "z")]
    weights = {"w": random(1, 64, 8), "r": random(1, 64, 16)}
    inputs = {"x": (TensorProto.FLOAT, ["time", "n", 8])}
    return model_bytes(nodes, inputs, ["z", "h"], weights), lambda rows: {"x": random(9, rows, 8)}


def time_first() -> Model:
    """torch's MultiheadAttention: matrices of all times of all rows, in which rows do not lie
    together, and heads of [time, rows * heads, width]."""
    nodes = [
        node("Transpose", "x", "turned", perm=[1, 0, 2]),
        node("Reshape", "turned matrix", "flat"),
        node("Gemm", "flat w b", "projected"),
        node("Relu", "projected", "bent"),
        node("Shape", "turned", "sizes"),
        node("Slice", "sizes zero one", "time"),
        node("Concat", "time heads", "of_heads", axis=0),
        node("Reshape", "bent of_heads", "parted"),
        node("Transpose", "parted", "q", perm=[1, 0, 2]),
        node("Transpose", "parted", "k", perm=[1, 2, 0]),
        node("MatMul", "q k", "scores"),
        node("Softmax", "scores", "shares"),
        node("MatMul", "shares q", "mixed"),
        node("Transpose", "mixed", "back", perm=[1, 0, 2]),
        node("Reshape", "back matrix", "rows"),
        node("LayerNormalization", "rows s", "normalized"),
        node("Reshape", "normalized sizes", "whole"),
        node("Add", "whole turned", "sum"),
        node("Transpose", "sum", "y", perm=[1, 0, 2]),
    ]
    weights = {
        "w": random(32, 32), "b": random(32), "s": random(32), "matrix": np.array([-1, 32]),
        "zero": np.array([0]), "one": np.array([1]), "heads": np.array([-1, 8]),
    }  # fmt: skip
    inputs = {"x": (TensorProto.FLOAT, ["n", "t", 32])}
    return model_bytes(nodes, inputs, ["y"], weights), lambda rows: {"x": random(rows, 11, 32)}


def sessions(model: bytes, feeds: dict[str, Array], rows: int) -> tuple[InferenceSession, Any, int]:
    """One without a limit, and one that can run `rows` rows at a time, with the limit."""
    options = SessionOptions()
    options.intra_op_num_threads = 1
    free = InferenceSession(model, options)
    free.run(None, feeds)
    axis = {name: array.shape.index(ROWS) for name, array in feeds.items()}
    part = {name: array.take(range(rows), axis[name]) for name, array in feeds.items()}
    limit = free.memory(part).total_bytes + free.memory(feeds).outputs_bytes
    return free, InferenceSession(model, options, memory_limit=limit), limit


MODELS: dict[str, Callable[[], Model]] = {
    "cnn": cnn,
    "encoder": encoder,
    "recurrent": recurrent,
    "flat mask": lambda: indexed_mask("flat"),
    "mask by GatherND": lambda: indexed_mask("GatherND"),
    "sampled images": sampled_images,
    "time first": time_first,
}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_parts_give_the_results_of_the_whole_within_the_limit(make: Callable[[], Model]) -> None:
    model, feeds_of = make()
    feeds = feeds_of(ROWS)
    free, limited, limit = sessions(model, feeds, 3)
    whole, report = free.memory(feeds), limited.memory(feeds)
    assert whole.total_bytes > limit and whole.parts == 1
    assert 1 < report.parts <= -(-ROWS // 3) and report.total_bytes <= limit
    for _ in range(2):
        ours = limited.run(None, feeds)
        for one, two in zip(ours, free.run(None, feeds), strict=True):
            np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-6)
        peak = limited._session.last_peak_bytes
        assert peak <= report.peak_bytes and peak + report.weights_bytes <= limit
    small = feeds_of(2)
    for one, two in zip(limited.run(None, small), free.run(None, small), strict=True):
        np.testing.assert_array_equal(one, two)


def test_bound_outputs_over_feeds_are_as_if_they_were_apart() -> None:
    model = model_bytes(
        [node("MatMul", "x w", "m"), node("Tanh", "m", "y")],
        {"x": (TensorProto.FLOAT, ["n", 64])},
        ["y"],
        {"w": random(64, 64)},
    )
    feeds = {"x": random(ROWS, 64)}
    free, limited, _ = sessions(model, feeds, 4)
    (expected,) = free.run(None, feeds)
    memory = np.zeros((2 * ROWS, 64), "float32")
    memory[:ROWS] = feeds["x"]
    binding = limited.io_binding()
    binding.bind_cpu_input("x", memory[:ROWS])
    place = OrtValue.ortvalue_from_numpy(memory[3 : 3 + ROWS])  # over rows that later parts read
    binding.bind_ortvalue_output("y", place)
    limited.run_with_iobinding(binding)
    np.testing.assert_allclose(memory[3 : 3 + ROWS], expected, rtol=1e-5, atol=1e-6)


def test_runs_in_parts_share_the_limit() -> None:
    model, feeds_of = cnn()
    feeds = feeds_of(ROWS)
    free, limited, limit = sessions(model, feeds, 4)
    expected = free.run(None, feeds)
    wrong: list[int] = []

    def work() -> None:
        for _ in range(3):
            ours = limited.run(None, feeds)
            wrong.extend(
                not np.allclose(a, b, atol=1e-6) for a, b in zip(ours, expected, strict=True)
            )

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(wrong) and not any(thread.is_alive() for thread in threads)
    held = limited._session.held["peak_bytes"] + limited.memory(feeds).weights_bytes
    assert held <= limit + 16 * 1024  # results that callers still have


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ([node("Softmax", "x", "y", axis=0)], "rows meet in Softmax"),
        ([node("Shape", "x", "s"), node("Cast", "s", "c", to=1), node("ReduceMax", "c", "m"),
          node("Div", "x m", "y")], "number of rows"),
        ([node("RandomUniformLike", "x", "u"), node("Add", "x u", "y")], "number of rows"),
        ([node("Shape", "x", "s"), node("Gather", "s zero", "n"), node("Range", "zero n one", "r"),
          node("Mul", "r two", "t"), node("Gather", "x t", "y")], "rows meet in Gather"),
        ([node("Relu", "x", "y")], "one row at a time needs"),
    ],
)  # fmt: skip
def test_what_cannot_run_in_parts_is_refused_with_the_reason(nodes: Any, reason: str) -> None:
    numbers = {"zero": np.array(0), "one": np.array(1), "two": np.array(2)}
    model = model_bytes(nodes, {"x": (TensorProto.FLOAT, ["n", 256])}, ["y"], numbers)
    limit = 6000 if reason.startswith("one row") else 20_000
    session = InferenceSession(model, memory_limit=limit)
    with pytest.raises(RuntimeException, match=f"cannot run in parts .*{reason}"):
        session.run(None, {"x": random(64, 256)})


def two_branches() -> bytes:
    """`choice` decides the graph: rows stay apart, or they meet in a mean."""
    apart = [node("MatMul", "x w1", "a"), node("Relu", "a", "b"), node("MatMul", "b w2", "c")]
    meet = [node("MatMul", "x w1", "d"), node("ReduceMean", "d axis", "e", keepdims=1),
            node("Sub", "d e", "f"), node("MatMul", "f w2", "g")]  # fmt: skip
    branches = {
        f"{name}_branch": helper.make_graph(nodes, name, [], [onnx.ValueInfoProto(name=output)])
        for name, nodes, output in (("then", apart, "c"), ("else", meet, "g"))
    }
    return model_bytes(
        [node("Cast", "choice", "is_apart", to=9), node("If", "is_apart", "y", **branches)],
        {"x": (TensorProto.FLOAT, ["n", 8]), "choice": (TensorProto.INT64, [])},
        ["y"],
        {"w1": random(8, 512), "w2": random(512, 8), "axis": np.array([0])},
    )


def test_rows_within_blocks_that_do_not_agree_meet() -> None:
    """[rows, time] and [time, rows] as vectors: a row is elsewhere in each."""
    nodes = [
        node("Transpose", "x", "turned", perm=[1, 0]),
        node("Reshape", "turned flat", "by_time"),
        node("Reshape", "x flat", "by_row"),
        node("Add", "by_time by_row", "sum"),
        node("Reshape", "sum sizes", "y"),
    ]
    weights = {"flat": np.array([-1]), "sizes": np.array([-1, 4096])}
    model = model_bytes(nodes, {"x": (TensorProto.FLOAT, ["n", 4096])}, ["y"], weights)
    feeds = {"x": random(ROWS, 4096)}
    limit = InferenceSession(model).memory(feeds).total_bytes - 1
    with pytest.raises(RuntimeException, match="rows meet in Add"):
        InferenceSession(model, memory_limit=limit).run(None, feeds)


def test_parts_of_one_row_do_what_the_whole_call_does() -> None:
    """A size of 1 has an import of its own, and a model may do something else for it."""
    branches = {
        f"{name}_branch": helper.make_graph([node(op, "m", name)], name, [],
                                            [onnx.ValueInfoProto(name=name)])
        for name, op in (("then", "Tanh"), ("else", "Neg"))
    }  # fmt: skip
    model = model_bytes(
        [node("MatMul", "x w", "m"), node("Shape", "x", "s"), node("Gather", "s zero", "n"),
         node("Range", "zero n one", "r"), node("Gather", "m r", "same"),
         node("Greater", "n one", "are_many"), node("If", "are_many", "b", **branches),
         node("Add", "b same", "a"), node("ReduceSum", "a axis", "y", keepdims=1)],
        {"x": (TensorProto.FLOAT, ["n", 64])},
        ["y"],
        {"w": random(64, 4096), "zero": np.array(0), "one": np.array(1), "axis": np.array([1])},
    )  # fmt: skip
    feeds = {"x": random(ROWS, 64)}
    free = InferenceSession(model)
    whole = free.memory(feeds)
    limit = whole.weights_bytes + whole.outputs_bytes + whole.block_bytes // 8
    limited = InferenceSession(model, memory_limit=limit)
    assert limited.memory(feeds).parts == ROWS
    (expected,), (ours,) = free.run(None, feeds), limited.run(None, feeds)
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-4)
    one = {"x": feeds["x"][:1]}
    (expected,), (ours,) = free.run(None, one), limited.run(None, one)
    np.testing.assert_array_equal(ours, expected)
    product = feeds["x"][:1] @ random(64, 4096)  # a call of one row takes the other branch
    np.testing.assert_allclose(ours, (product - product).sum(1, keepdims=True), atol=1e-3)


def test_the_content_of_a_feed_decides_whether_there_are_parts() -> None:
    model, x = two_branches(), random(2048, 8)
    free, limited = InferenceSession(model), InferenceSession(model, memory_limit=1_600_000)
    apart = {"x": x, "choice": np.array(1)}
    (ours,), (expected,) = limited.run(None, apart), free.run(None, apart)
    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(RuntimeException, match="rows meet in ReduceMean"):
        limited.run(None, {"x": x, "choice": np.array(0)})


def test_contents_of_rows_that_decide_a_size_keep_them_together() -> None:
    """A part would have another longest row."""
    model = model_bytes(
        [node("ReduceMax", "lengths", "longest", keepdims=1),
         node("Slice", "x first longest second", "s"), node("MatMul", "s s", "y")],
        {"x": (TensorProto.FLOAT, ["n", "t", "t"]), "lengths": (TensorProto.INT64, ["n"])},
        ["y"],
        {"first": np.array([0]), "second": np.array([2])},
    )  # fmt: skip
    feeds = {"x": random(8, 32, 32), "lengths": np.array([32, 3, 5, 7, 9, 11, 13, 15])}
    session = InferenceSession(model, memory_limit=20_000)
    with pytest.raises(RuntimeException, match="contents of rows decide sizes"):
        session.run(None, feeds)
