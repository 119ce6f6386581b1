"""Nodes of single operators that contradict themselves or their feeds: an error, and no crash."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from ortmodule_py import InferenceSession
from ortmodule_py.inference import Fail, InvalidGraph
from tests.inference.test_data_sizes import (
    BOOL,
    FLOAT,
    INT64,
    constant,
    make_model,
    node,
    value,
)
from tests.inference.test_session import ONE_THREAD


def single(
    op: str, inputs: dict[str, Any], outputs: int = 1, opset: int = 18, **attributes: Any
) -> Any:
    """A model of one node, without sizes, and its feeds."""
    names = [f"y{i}" for i in range(outputs)]
    kinds = {k: helper.np_dtype_to_tensor_dtype(v.dtype) for k, v in inputs.items()}
    model = make_model(
        [node(op, list(inputs), names, name="it", **attributes)],
        [value(name, kind, None) for name, kind in kinds.items()],
        [onnx.ValueInfoProto(name=name) for name in names],
        opset=opset,
    )
    return model, inputs


def loop_body(outputs: list[str]) -> Any:
    return helper.make_graph(
        [
            node("NonZero", ["s"], ["places"]),
            node("ReduceMax", ["places"], ["s_out"]),
            node("Concat", ["places", "places"], ["pair"], axis=1),
        ],
        "body",
        [value("i", INT64, []), value("again", BOOL, []), value("s", INT64, [])],
        [value(name, INT64, None) for name in outputs],
    )


def scan_body() -> Any:
    return helper.make_graph(
        [node("Identity", ["s"], ["s_out"]), node("Relu", ["e"], ["y"])],
        "body",
        [value("s", FLOAT, [1]), value("e", FLOAT, [3])],
        [value("s_out", FLOAT, [1]), value("y", FLOAT, [3])],
    )


X = np.ones((2, 3), "float32")
BOXES, SCORES = np.ones((1, 5, 4), "float32"), np.ones((1, 2, 5), "float32")
IMAGE = np.ones((1, 1, 4, 4), "float32")
WINDOWS = {
    "x": np.ones((1, 4, 9), "float32"),
    "image": np.array([4, 4]),
    "block": np.array([2, 2]),
}
GRAMS: dict[str, Any] = {
    "mode": "TF",
    "min_gram_length": 1,
    "max_gram_length": 2,
    "max_skip_count": 0,
    "ngram_counts": [0, 2],
    "ngram_indexes": [0, 1, 2],
    "pool_int64s": [1, 2, 3, 4],
}
MALFORMED = {
    "a condition of rank 2": single("Compress", {"x": X, "keep": np.ones((2, 3), bool)}, axis=0),
    "a condition of numbers": single("Compress", {"x": X, "keep": X[0]}),
    "an axis beyond x": single("Compress", {"x": X, "keep": np.ones(2, bool)}, axis=5),
    "an axis before x": single("Unique", {"x": X}, 4, axis=-3),
    "no operand": single("Unique", {}, 1),
    "boxes of three numbers": single(
        "NonMaxSuppression", {"boxes": BOXES[..., :3].copy(), "scores": SCORES}
    ),
    "fewer boxes than scores": single(
        "NonMaxSuppression", {"boxes": BOXES[:, :2].copy(), "scores": SCORES}
    ),
    "several limits": single(
        "NonMaxSuppression", {"boxes": BOXES, "scores": SCORES, "most": np.array([1, 2])}
    ),
    "a threshold above 1": single(
        "NonMaxSuppression",
        {"boxes": BOXES, "scores": SCORES, "most": np.array([1]), "iou": np.array([7], "float32")},
    ),
    "fewer places than n-grams": single(
        "TfIdfVectorizer", {"x": np.ones(4, "int64")}, **{**GRAMS, "ngram_indexes": [0, 1]}
    ),
    "n-grams beyond the pool": single(
        "TfIdfVectorizer", {"x": np.ones(4, "int64")}, **{**GRAMS, "ngram_counts": [0, 9]}
    ),
    "a place of 2^40": single(
        "TfIdfVectorizer", {"x": np.ones(4, "int64")}, **{**GRAMS, "ngram_indexes": [0, 1, 1 << 40]}
    ),
    "a window of 2^40 channels": single(
        "LRN", {"x": np.ones((1, 2, 3, 3), "float32")}, size=1 << 40
    ),
    "pads of 2^40": single("Pad", {"x": X[0], "pads": np.array([1 << 40, 0])}, mode="edge"),
    "pads below the size": single("Pad", {"x": X[0], "pads": np.array([-9, 0])}, mode="edge"),
    "regions of an image of rank 2": single(
        "RoiAlign", {"x": X, "rois": BOXES[0], "batch": np.zeros(5, "int64")}, sampling_ratio=2
    ),
    "regions of three numbers": single(
        "RoiAlign",
        {"x": IMAGE, "rois": BOXES[0, :, :3].copy(), "batch": np.zeros(5, "int64")},
        sampling_ratio=2,
    ),
    "2^40 bins": single(
        "RoiAlign",
        {"x": IMAGE, "rois": BOXES[0], "batch": np.zeros(5, "int64")},
        sampling_ratio=2,
        output_height=1 << 40,
    ),
    "pooled regions without a batch": single(
        "MaxRoiPool", {"x": IMAGE, "rois": BOXES[0]}, pooled_shape=[1, 1]
    ),
    "2^40 pooled bins": single(
        "MaxRoiPool",
        {"x": IMAGE, "rois": np.zeros((1, 5), "float32")},
        pooled_shape=[1 << 40, 1],
    ),
    "deformed weights of rank 3": single(
        "DeformConv", {"x": IMAGE, "w": BOXES, "offset": IMAGE}, opset=19
    ),
    "no groups of offsets": single(
        "DeformConv", {"x": IMAGE, "w": IMAGE, "offset": IMAGE}, opset=19, offset_group=0
    ),
    "windows 2^40 apart": single("Col2Im", WINDOWS, dilations=[1, 1 << 40]),
    "windows without a distance": single("Col2Im", WINDOWS, dilations=[0, 1]),
    "fewer windows than blocks": single("Col2Im", WINDOWS, pads=[9, 9, 9, 9]),
    "a bit cast to another size": single("BitCast", {"x": X}, opset=26, to=TensorProto.DOUBLE),
    "a body without outputs": single(
        "Loop", {"m": np.array(3), "c": np.array(True), "s0": np.array(1)}, body=loop_body([])
    ),
    "a body of fewer outputs": single(
        "Loop",
        {"m": np.array(3), "c": np.array(True), "s0": np.array(1)},
        body=loop_body(["s_out"]),
    ),
    "an output axis far beyond the rank": single(
        "Scan",
        {"s": X[0, :1], "x": X},
        2,
        body=scan_body(),
        num_scan_inputs=1,
        scan_output_axes=[1 << 20],
    ),
    "an output axis far before the rank": single(
        "Scan",
        {"s": X[0, :1], "x": X},
        2,
        body=scan_body(),
        num_scan_inputs=1,
        scan_output_axes=[-(1 << 20)],
    ),
    "a column beyond the row": single("GatherND", {"x": X, "at": np.array([[0, 3]])}),
    "a column before the row": single("GatherND", {"x": X, "at": np.array([[1, -4]])}),
    "a place beyond its batch": single(
        "GatherND", {"x": X, "at": np.array([[3], [0]])}, batch_dims=1
    ),
    "an update beyond the row": single(
        "ScatterND", {"x": X, "at": np.array([[0, 3]]), "new": X[0, :1]}
    ),
    "a third norm": single("LpNormalization", {"x": X}, p=3),
    "no axes": single("Unsqueeze", {"x": X}, opset=12),
    "a condition of two numbers": single(
        "Loop",
        {"m": np.array(3), "c": np.array(True), "s0": np.array(1)},
        body=loop_body(["pair", "s_out"]),
    ),
}


def test_a_sequence_of_absent_tensors() -> None:
    model = make_model(
        [node("SequenceConstruct", ["", "x"], ["s"]), node("SequenceLength", ["s"], ["y"])],
        [value("x", FLOAT, [2])],
        [helper.make_tensor_sequence_value_info("s", FLOAT, None), value("y", INT64, [])],
    )
    with pytest.raises(RuntimeError, match="operand 0 must be given"):
        InferenceSession(model, ONE_THREAD).run(None, {"x": np.ones(2, "float32")})


def test_an_output_that_its_node_does_not_compute() -> None:
    """Results must not move to the names of others."""
    model = make_model(
        [node("Relu", ["x"], ["y", "z"])],
        [value("x", FLOAT, [2])],
        [value("z", FLOAT, [2]), value("y", FLOAT, [2])],
    )
    with pytest.raises(RuntimeError, match="at most 1 outputs, but found 2"):
        InferenceSession(model, ONE_THREAD).run(None, {"x": np.ones(2, "float32")})


def test_a_branch_on_data_that_is_not_there() -> None:
    then = helper.make_graph(
        [node("NonZero", ["x"], ["found"])], "then", [], [value("found", INT64, None)]
    )
    model = make_model(
        [
            node("ReduceMax", ["x"], ["most"], keepdims=0),
            node("Cast", ["most"], ["any"], to=BOOL),
            node("If", ["any"], ["y"], name="it", then_branch=then),
        ],
        [value("x", FLOAT, [3])],
        [value("y", INT64, None)],
    )
    with pytest.raises(Fail, match="If 'it': attribute 'else_branch' must be given"):
        InferenceSession(model, ONE_THREAD).run(None, {"x": np.ones(3, "float32")})


def counted_from_each_other(count: int, is_kept: bool) -> bytes:
    """Each count cuts the model once more. `is_kept`: all of them are read at the end."""
    nodes = []
    for i in range(count):
        nodes.append(node("NonZero", [f"x{i}"], [f"n{i}"], name=f"count{i}"))
        nodes.append(node("ReduceMin", [f"n{i}", "columns"], [f"m{i}"]))
        nodes.append(node("Max", [f"m{i}", "one"], [f"x{i + 1}"]))
    nodes.append(node("Sum", [f"m{i}" for i in range(count if is_kept else 1)], ["y"]))
    weights = [constant("one", [[1]]), constant("columns", [1])]
    nodes.append(node("Identity", [f"x{count}"], ["last"]))
    outputs = [value("y", INT64, None), value("last", INT64, None)]
    return make_model(nodes, [value("x0", INT64, [1, 1])], outputs, weights)


def test_a_long_chain_of_counts_runs_and_goes() -> None:
    """Thousands of segments that follow each other, on a small stack: nothing recurses over them."""
    results: list[list[Any]] = []

    def run() -> None:
        session = InferenceSession(counted_from_each_other(2000, False), ONE_THREAD)
        results.append([y.tolist() for y in session.run(None, {"x0": np.ones((1, 1), "int64")})])

    before = threading.stack_size(256 * 1024)
    try:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    finally:
        threading.stack_size(before)
    assert results == [[[[0], [0]], [[1], [1]]]]


@pytest.mark.slow
def test_what_cuts_pass_on_is_bounded() -> None:
    session = InferenceSession(counted_from_each_other(600, True), ONE_THREAD)
    with pytest.raises(RuntimeError, match=r"'count49\d'.* at fewer values that later nodes read"):
        session.run(None, {"x0": np.ones((1, 1), "int64")})


@pytest.mark.parametrize("what", MALFORMED)
def test_malformed_nodes_are_errors(what: str) -> None:
    model, feeds = MALFORMED[what]
    with pytest.raises(RuntimeError) as raised:
        InferenceSession(model, ONE_THREAD).run(None, feeds)
    assert "internal error" not in str(raised.value)


WORDS = {
    "approximate": single("Gelu", {"x": X}, opset=20, approximate="nonsense"),
    "direction": single(
        "RNN",
        {
            "x": BOXES,
            "w": np.ones((1, 2, 4), "float32"),
            "r": np.ones((1, 2, 2), "float32"),
        },
        opset=22,
        hidden_size=2,
        direction="nonsense",
    ),
    "mode": single("Pad", {"x": X, "pads": np.array([0, 1, 0, 1])}, mode="nonsense"),
    "reduction": single(
        "SoftmaxCrossEntropyLoss", {"x": X, "labels": np.array([0, 1])}, reduction="nonsense"
    ),
}


@pytest.mark.parametrize("name", WORDS)
def test_an_unknown_word_is_no_default(name: str) -> None:
    model, feeds = WORDS[name]
    with pytest.raises(Fail, match=f"{name} must be one of .* but found 'nonsense'"):
        InferenceSession(model, ONE_THREAD).run(None, feeds)


BYTES, SCALE = np.ones((2, 4), "uint8"), np.array(0.5, "float32")
POINT, SCALES = np.array(3, "uint8"), np.ones((2, 4), "float32")
LINEAR = {
    f"{what}{i}": each
    for i in range(3)
    for what, each in (("x", BYTES), ("scale", SCALE), ("point", POINT))
    if (what, i) != ("x", 2)
}
BLOCKS = {
    "x": np.ones((1, 64), "float32"),
    "w": np.ones((8, 2, 16), "uint8"),
    "scales": np.ones(16, "float32"),
    "points": np.ones(8, "uint8"),
}
BLOCK_SIZES = {"K": 64, "N": 8, "bits": 4, "block_size": 32, "domain": "com.microsoft"}
QUANTIZED: dict[str, tuple[Any, str]] = {
    "type of a zero point": (
        single("DequantizeLinear", {"x": BYTES, "s": SCALE, "z": np.array(3, "int8")}),
        "same type, but found u8 and i8",
    ),
    "zero points of one scale": (
        single("DequantizeLinear", {"x": BYTES, "s": SCALE, "z": np.ones(4, "uint8")}),
        r"a zero point for each scale, but found scales \[\] and zero points \[z_0\]",
    ),
    "zero points of fewer scales": (
        single("QuantizeLinear", {"x": SCALES, "s": SCALES[0], "z": np.ones(3, "uint8")}),
        "a zero point for each scale",
    ),
    "scales beyond the blocks": (
        single("DequantizeLinear", {"x": BYTES, "s": SCALES}, opset=21, axis=1, block_size=2),
        r"a scale for each block of 2 of axis 1, but found x \[x_0,x_1\] and scales",
    ),
    "blocks of less than nothing": (
        single("DequantizeLinear", {"x": BYTES, "s": SCALES}, opset=21, axis=1, block_size=-2),
        "block_size must be positive",
    ),
    "types of a sum": (
        single("QLinearAdd", {**LINEAR, "point2": np.array(3, "int8")}, domain="com.microsoft"),
        "of what they are for, u8, but operand 7 is of i8",
    ),
    "scales of a product": (
        single("QLinearMul", {**LINEAR, "scale1": SCALES[0]}, domain="com.microsoft"),
        r"operand 4 must be one number, but found \[scale1_0\]",
    ),
    "sizes of a window": (
        single("Conv", {"x": IMAGE, "w": IMAGE[:, :, 1:, 1:].copy()}, kernel_shape=[2, 3]),
        r"kernel_shape must be that of the weights, \[3,3\], but found \[2,3\]",
    ),
    "blocks in another order": (
        single("MatMulNBits", {**BLOCKS, "w": BLOCKS["w"].T.copy()}, **BLOCK_SIZES),
        r"B must be u8\[8,2,16\] for N, K, bits and block_size, but found u8",
    ),
    "scales in another order": (
        single("MatMulNBits", {**BLOCKS, "scales": BLOCKS["scales"].reshape(2, 8)}, **BLOCK_SIZES),
        r"operand 2 must have 8 rows of 2, but found \[scales_0,scales_1\]",
    ),
    "scales that are integers": (
        single(
            "MatMulNBits", {**BLOCKS, "scales": BLOCKS["scales"].astype("int32")}, **BLOCK_SIZES
        ),
        "scales must be real numbers, but found i32",
    ),
    "a product beyond all sizes": (
        single("MatMulNBits", BLOCKS, **{**BLOCK_SIZES, "K": 1 << 62}),
        "'K' must be from 1 to",
    ),
}


@pytest.mark.parametrize("what", QUANTIZED)
def test_quantized_operands_that_contradict_each_other(what: str) -> None:
    (model, feeds), rule = QUANTIZED[what]
    with pytest.raises(RuntimeError, match=rule):
        InferenceSession(model, ONE_THREAD).run(None, feeds)


def test_texts_behind_a_count_are_texts() -> None:
    """A constant of texts stays one in the part behind the cut."""
    model = make_model(
        [
            node("NonZero", ["x"], ["places"]),
            node("Squeeze", ["places", "axis"], ["index"]),
            node("Gather", ["names", "index"], ["y"]),
        ],
        [value("x", FLOAT, [3])],
        [value("y", TensorProto.STRING, [None])],
        [
            constant("axis", [0]),
            helper.make_tensor("names", TensorProto.STRING, [3], [b"a", b"b", b"c"]),
        ],
    )
    (y,) = InferenceSession(model, ONE_THREAD).run(None, {"x": np.array([0, 1, 1], "float32")})
    assert y.tolist() == ["b", "c"]


def test_weights_that_begin_at_one_place_of_a_file(tmp_path: Path) -> None:
    """Of two sizes, at an address that no kernel can read: each has its own elements."""
    numbers = np.arange(1000, dtype="float32")
    (tmp_path / "weights.bin").write_bytes(b"0" + numbers.tobytes())
    weights = [TensorProto(name=f"w{n}", data_type=FLOAT, dims=[n]) for n in (10, 1000)]
    for weight in weights:
        weight.data_location = TensorProto.EXTERNAL
        bytes_ = 4 * weight.dims[0]
        for key, text in {"location": "weights.bin", "offset": "1", "length": str(bytes_)}.items():
            weight.external_data.add(key=key, value=text)
    path = tmp_path / "model.onnx"
    path.write_bytes(
        make_model(
            [node("Add", [f"x{n}", f"w{n}"], [f"y{n}"]) for n in (10, 1000)],
            [value(f"x{n}", FLOAT, [n]) for n in (10, 1000)],
            [value(f"y{n}", FLOAT, [n]) for n in (10, 1000)],
            weights,
        )
    )
    feeds = {f"x{n}": np.zeros(n, "float32") for n in (10, 1000)}
    short, long = InferenceSession(str(path), ONE_THREAD).run(None, feeds)
    np.testing.assert_array_equal(short, numbers[:10])
    np.testing.assert_array_equal(long, numbers)


def test_two_nodes_that_make_one_name() -> None:
    model = make_model(
        [node("Relu", ["x"], ["y"]), node("Neg", ["x"], ["y"])],
        [value("x", FLOAT, [3])],
        [value("y", FLOAT, [3])],
    )
    with pytest.raises(InvalidGraph, match="must have a name of its own, but found another 'y'"):
        InferenceSession(model, ONE_THREAD)
