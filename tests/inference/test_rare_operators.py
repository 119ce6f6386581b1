"""Operators that few models have, against stock onnxruntime, also from the optimized file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

from ortmodule_py import InferenceSession, SessionOptions
from tests.inference.test_data_sizes import (
    FLOAT,
    INT64,
    compare,
    constant,
    make_model,
    node,
    stock,
    value,
)
from tests.inference.test_operators_of_onnxruntime import single
from tests.inference.test_session import ONE_THREAD

# Pairs share beginnings, and one of them is a pair of equal elements.
GRAMS: dict[str, Any] = {
    "min_gram_length": 1,
    "ngram_counts": [0, 3, 11],
    "ngram_indexes": [4, 0, 2, 1, 3, 5, 6],
    "pool_int64s": [2, 3, 5, 2, 3, 2, 5, 3, 3, 5, 4],
}


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize(("longest", "skips"), [(1, 0), (2, 0), (2, 3)])
def test_counts_of_n_grams(mode: str, longest: int, skips: int, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    weights = random.random(7).tolist() if mode != "TF" else None
    attributes = {**GRAMS, "mode": mode, "max_gram_length": longest, "max_skip_count": skips}
    if weights:
        attributes["weights"] = weights
    model = make_model(
        [node("TfIdfVectorizer", ["x"], ["y"], **attributes)],
        [value("x", INT64, [3, 12])],
        [value("y", FLOAT, None)],
    )
    feeds = [{"x": random.integers(1, 6, (3, 12))} for _ in range(4)]
    (y,) = compare(model, *feeds)
    assert y.shape == (3, 7)
    assert y.any()
    options = SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    InferenceSession(model, options)
    (again,) = stock((tmp_path / "optimized.onnx").read_bytes()).run(None, feeds[-1])
    np.testing.assert_allclose(again, y, rtol=1e-6)


def test_n_grams_of_large_numbers() -> None:
    """Hashes, for example: elements of the pool are no sizes."""
    x = np.array([1 << 41, 1 << 41, 1 << 42, 1 << 40, 9])
    grams = {**GRAMS, "mode": "TF", "max_gram_length": 1, "max_skip_count": 0}
    grams |= {"ngram_counts": [0], "ngram_indexes": [0, 1], "pool_int64s": [1 << 41, 1 << 42]}
    model = make_model(
        [node("TfIdfVectorizer", ["x"], ["y"], **grams)],
        [value("x", INT64, [5])],
        [value("y", FLOAT, None)],
    )
    compare(model, {"x": x})


def test_indices_of_maxima_by_columns() -> None:
    random = np.random.default_rng(1)
    pool = {"kernel_shape": [2, 3], "strides": [2, 1], "storage_order": 1}
    model = make_model(
        [node("MaxPool", ["x"], ["y", "places"], **pool)],
        [value("x", FLOAT, ["n", "c", "h", "w"])],
        [value("y", FLOAT, None), value("places", INT64, None)],
    )
    shapes = [(2, 3, 6, 7), (1, 1, 4, 5)]
    compare(model, *[{"x": random.standard_normal(shape).astype("float32")} for shape in shapes])


def test_a_scan_of_a_batch() -> None:
    """Operator set 8, whose Scan has a batch."""
    body = helper.make_graph(
        [node("Add", ["s", "x_in"], ["s_out"]), node("Mul", ["s", "x_in"], ["y_out"])],
        "body",
        [value("s", FLOAT, [2]), value("x_in", FLOAT, [2])],
        [value("s_out", FLOAT, [2]), value("y_out", FLOAT, [2])],
    )
    for direction in (0, 1):
        scan = node(
            "Scan",
            ["", "s0", "x"],
            ["s1", "y"],
            body=body,
            num_scan_inputs=1,
            directions=[direction],
        )
        model = make_model(
            [scan],
            [value("s0", FLOAT, [3, 2]), value("x", FLOAT, [3, 5, 2])],
            [value("s1", FLOAT, [3, 2]), value("y", FLOAT, [3, 5, 2])],
            opset=8,
        )
        random = np.random.default_rng(2)
        s0, x = (random.standard_normal(s).astype("float32") for s in ((3, 2), (3, 5, 2)))
        compare(model, {"s0": s0, "x": x})


@pytest.mark.parametrize("op", ["LayerNormalization", "GroupNormalization", "TensorScatter"])
def test_operands_of_unrelated_sizes(op: str) -> None:
    """Sizes that the model leaves open agree in each call, or are 1."""
    shapes: list[dict[str, tuple[int, ...]]] = {
        "LayerNormalization": [{"x": (2, 3), "w": (3,)}, {"x": (4, 5), "w": (1,)}],
        "GroupNormalization": [{"x": (2, 4, 3), "w": (4,), "b": (4,)}],
        "TensorScatter": [{"x": (2, 6, 3), "w": (2, 2, 3), "at": (2,)}],
    }[op]
    attributes = {"GroupNormalization": {"num_groups": 2}, "LayerNormalization": {"axis": -1}}
    kinds = {name: INT64 if name == "at" else FLOAT for name in shapes[0]}
    model = make_model(
        [node(op, list(kinds), ["y"], **attributes.get(op, {}))],
        [
            value(name, kinds[name], [f"{name}{d}" for d in range(len(shape))])
            for name, shape in shapes[0].items()
        ],
        [value("y", FLOAT, None)],
        opset={"TensorScatter": 24}.get(op, 21),
    )
    random = np.random.default_rng(2)
    compare(
        model,
        *[
            {
                name: np.arange(shape[0])
                if name == "at"
                else random.standard_normal(shape).astype("float32")
                for name, shape in feed.items()
            }
            for feed in shapes
        ],
    )


NUMBERS = [0.0, 1e-30, 1e-10, 1e-3, 0.5, 0.99, 1.0, 1.001, 3.0, 20.5, 89.0, 1e3, 3e4, np.inf]


@pytest.mark.parametrize("op", ["Softplus", "Asinh", "Acosh", "Atanh", "Mish", "Sigmoid", "Tanh"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_functions_of_large_and_small_numbers(op: str, dtype: str) -> None:
    large = [1e10, 1e20, 3e38] if dtype == "float32" else []
    numbers = np.array(NUMBERS + large)
    x = np.concatenate([numbers, -numbers, [np.nan]]).astype(dtype)
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    model = make_model(
        [node(op, ["x"], ["y"])], [value("x", kind, [None])], [value("y", kind, None)], opset=22
    )
    (y,) = InferenceSession(model, ONE_THREAD).run(None, {"x": x})
    wide = x.astype("float64")
    with np.errstate(all="ignore"):
        softplus = np.logaddexp(0, wide)
        expected = {
            "Softplus": softplus,
            "Asinh": np.arcsinh(wide),
            "Acosh": np.arccosh(wide),
            "Atanh": np.arctanh(wide),
            "Mish": wide * np.tanh(softplus),
            "Sigmoid": np.exp(-np.logaddexp(0, -wide)),
            "Tanh": np.tanh(wide),
        }[op].astype(dtype)
    if op == "Mish":  # -inf * 0
        y, expected = y[np.isfinite(x)], expected[np.isfinite(x)]
    tolerance = 2e-5 if dtype == "float32" else 2e-3
    np.testing.assert_allclose(
        y, expected, rtol=tolerance, atol=1e-30 if dtype == "float32" else 1e-7
    )


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize(
    ("size", "stride", "pads", "dilation"),
    [(2, 2, None, 1), (3, 2, None, 1), (3, 3, None, 1), (4, 4, [1, 0, 1, 0], 1),
     (4, 4, [0, 1, 0, 0], 1), (2, 3, None, 3)],
)  # fmt: skip
def test_a_window_larger_than_the_image(
    op: str, size: int, stride: int, pads: list[int] | None, dilation: int
) -> None:
    """onnxruntime has it once where it is too large by less than a stride: small images of PaddleOCR's
    models come to that. Larger images of the same session have all their windows."""
    attributes: dict[str, Any] = {"kernel_shape": [size] * 2, "strides": [stride] * 2}
    if pads:
        attributes["pads"] = pads
    if dilation > 1:
        attributes["dilations"] = [dilation] * 2
    model = make_model(
        [node(op, ["x"], ["y"], **attributes)],
        [value("x", FLOAT, [1, 2, "h", "w"])],
        [value("y", FLOAT, None)],
        opset=19,
    )
    x = np.random.default_rng(0).random((1, 2, 9, 11), "float32")
    compare(model, {"x": x[:, :, :1, :5]}, {"x": x}, {"x": x[:, :, :2, :4]})


@pytest.mark.parametrize("reverse", [0, 1])
def test_exclusive_sums_are_no_differences(reverse: int) -> None:
    x = np.array([[1e8, 1, np.inf, 3], [1, 1e8, 5, 7]], "float32")
    for rows in (x, x[:, ::-1].copy(), x[:, :0]):
        model, feeds = single(
            "CumSum", [rows, np.array(1)], opset=14, fixed=True, exclusive=1, reverse=reverse
        )
        compare(model, feeds)


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMax", "ReduceL2", "ArgMax"])
@pytest.mark.parametrize("axis", [0, -1])
def test_the_axis_of_a_scalar(op: str, axis: int) -> None:
    axes = {"axis": axis} if op == "ArgMax" else {"axes": [axis]}
    model, feeds = single(op, [np.array(3.5, "float32")], opset=12, **axes)
    compare(model, feeds)


@pytest.mark.parametrize("padding", [{"auto_pad": "SAME_UPPER"}, {"pads": [1, 0, 0, 1]}])
@pytest.mark.parametrize("order", [0, 1])
def test_indices_of_maxima_beside_unequal_padding(padding: dict[str, Any], order: int) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 6, 7)).astype("float32")
    window = {"kernel_shape": [2, 2], "strides": [2, 2], "storage_order": order}
    model, feeds = single("MaxPool", [x], 2, opset=12, **window, **padding)
    compare(model, feeds)


def test_what_is_cut_off_is_not_repeated() -> None:
    x = np.arange(12, dtype="float32").reshape(3, 4)
    for pads in ([-1, 1, 0, -1], [-1, 2, 1, -2]):
        model, feeds = single("Pad", [x, np.array(pads)], opset=19, mode="wrap")
        compare(model, feeds)


def test_statistics_of_doubles_are_floats() -> None:
    x = np.random.default_rng(0).standard_normal((2, 5))
    model, feeds = single("LayerNormalization", [x, x[0]], 3, opset=17)
    compare(model, feeds)


def test_the_sign_of_nan() -> None:
    for dtype in ("float32", "float64"):
        model, feeds = single("Sign", [np.array([np.nan, -0.0, -2, 3], dtype)], opset=13)
        compare(model, feeds)


def test_nearest_elements_of_operator_set_10() -> None:
    """An axis that shrinks takes the element behind a place, one that grows that before it."""
    x = np.random.default_rng(0).standard_normal((1, 2, 7, 5)).astype("float32")
    for scales in ([1, 1, 0.6, 0.6], [1, 1, 0.4, 1.7], [1, 1, 2, 2.5], [1, 1, 1, 0.7]):
        model, feeds = single("Resize", [x, np.array(scales, "float32")], opset=10, mode="nearest")
        compare(model, feeds)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_a_resize_keeps_axes_of_factor_1(mode: str) -> None:
    """Also where a region says otherwise, as in onnxruntime."""
    x = np.arange(120, dtype="float32").reshape(1, 2, 6, 10) ** 1.5
    roi = np.array([0, 0, 0.1, 0.2, 1, 1, 0.8, 0.7], "float32")
    crop = "tf_crop_and_resize"
    for factors in ([1, 1, 1, 1], [1, 1, 2, 1], [1, 1, 1, 3]):
        scales = np.array(factors, "float32")
        model, feeds = single(
            "Resize", [x, roi, scales], mode=mode, coordinate_transformation_mode=crop
        )
        (theirs,) = stock(model).run(None, feeds)
        (ours,) = InferenceSession(model, ONE_THREAD).run(None, feeds)
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


@pytest.mark.parametrize("factors", [[1, 2, 3, 1], [1, 1, 2, 2], [1, 1, 3, 1.4], [1, 1, 2, 0.6]])
@pytest.mark.parametrize("width", [1, 7, 33])
def test_lines_that_are_stretched_before_they_are_added(factors: list[float], width: int) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 5, width)).astype("float32")
    for mode in ("linear", "nearest"):
        model, feeds = single("Resize", [x, None, np.array(factors, "float32")], mode=mode)
        (theirs,) = stock(model).run(None, feeds)
        (ours,) = InferenceSession(model, ONE_THREAD).run(None, feeds)
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("corners", [0, 1])
@pytest.mark.parametrize("sizes", [[2, 3, 5, 7], [1, 1, 1, 1], [2, 3, 4, 5, 6]])
def test_places_of_affine_maps(sizes: list[int], corners: int) -> None:
    dims = len(sizes) - 2
    theta = np.random.default_rng(0).standard_normal((sizes[0], dims, dims + 1)).astype("float32")
    model, feeds = single("AffineGrid", [theta, np.array(sizes)], opset=20, align_corners=corners)
    (theirs,) = stock(model).run(None, feeds)
    (ours,) = InferenceSession(model, ONE_THREAD).run(None, feeds)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("pads", [[0, 0, 0, 0], [1, 0, 1, 3]])
@pytest.mark.parametrize("strides", [[2, 3], [2, 1], [3, 3]])
def test_windows_put_together(pads: list[int], strides: list[int]) -> None:
    """Also those that tile their image."""
    image, window = np.array([6, 9]), np.array([2, 3])
    sums = image + pads[:2] + pads[2:] - window
    blocks = int(np.prod(sums // strides + 1))
    x = np.random.default_rng(0).standard_normal((2, 3 * 6, blocks)).astype("float32")
    model, feeds = single("Col2Im", [x, image, window], pads=pads, strides=strides)
    (theirs,) = stock(model).run(None, feeds)
    (ours,) = InferenceSession(model, ONE_THREAD).run(None, feeds)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("opset", [11, 13])
@pytest.mark.parametrize("shape", [(3, 0), (0, 3)])
def test_hardmax_of_nothing(shape: tuple[int, int], opset: int) -> None:
    model, feeds = single("Hardmax", [np.zeros(shape, "float32")], opset=opset)
    compare(model, feeds)


@pytest.mark.parametrize("opset", [13, 28])
@pytest.mark.parametrize("dtype", ["int64", "float32"])
def test_arithmetic_on_single_numbers(dtype: str, opset: int) -> None:
    """An import knows the content of such inputs, and computes with it as a run would."""
    pairs = [(-7, 3), (7, -3), (-7, -3), (8, 3), (0, 5), (-6, 3)]
    ops: list[tuple[str, dict[str, Any]]] = [
        (op, {}) for op in ("Add", "Sub", "Mul", "Div", "Min", "Max", "Less", "Equal")
    ]
    ops += [("Mod", {"fmod": 1})] + ([("Mod", {})] if dtype == "int64" else [])
    for op, attributes in ops:
        for pair in pairs:
            operands = [np.array(number, dtype) for number in pair]
            model, feeds = single(op, operands, opset=opset, **attributes)
            (wanted,) = stock(model).run(None, feeds)
            (got,) = InferenceSession(model, ONE_THREAD).run(None, feeds)
            np.testing.assert_array_equal(got, wanted, err_msg=f"{op} {pair} {attributes}")


@pytest.mark.parametrize("op", ["Div", "Mod"])
@pytest.mark.parametrize("shape", [(), (1,), (3,), (2000,)])
def test_a_divisor_of_zero_is_an_error(op: str, shape: tuple[int, ...]) -> None:
    """Whether it is known at import or data; with another one the same session runs."""
    operands = [np.full(shape, 5), np.full(shape, 0)]
    model, feeds = single(op, operands)
    session = InferenceSession(model, ONE_THREAD)
    other = {**feeds, "x1": np.full(shape, 3)}
    wanted = {"Div": 1, "Mod": 2}[op]
    for _ in range(2):
        with pytest.raises(RuntimeError, match="divisor must not be 0"):
            session.run(None, feeds)
        assert (session.run(None, other)[0] == wanted).all()


@pytest.mark.parametrize("length", [1 << 40, (1 << 40) - 1])
def test_tables_of_great_lengths_are_refused_at_once(length: int) -> None:
    signal = np.zeros((1, 8, 1), "float32")
    bands = [np.array(x) for x in (length, length, 16000)]
    edges = [np.array(x, "float32") for x in (0, 8000)]
    for model, feeds in (
        single("DFT", [signal, np.array(length)], opset=20),
        single("MelWeightMatrix", [*bands, *edges]),
    ):
        with pytest.raises(RuntimeError, match=r"must (be|have) at most 16777216"):
            InferenceSession(model, ONE_THREAD).run(None, feeds)


def test_sums_of_many_operands() -> None:
    """Nothing may take the stack of a call for each of them."""
    count = 20_000
    model = make_model(
        [node("Sum", ["x"] * count, ["y"])], [value("x", FLOAT, [4])], [value("y", FLOAT, None)]
    )
    x = np.array([1, 2, 0.5, -1], "float32")
    (y,) = InferenceSession(model, ONE_THREAD).run(None, {"x": x})
    np.testing.assert_array_equal(y, count * x)


SOURCE = np.array([5, 3, 8, 3, 8, 9, 2, 7])


@pytest.mark.parametrize(
    ("held", "start", "predicted"),
    [
        ([0], 0, None),
        ([0, 9], 0, None),
        ([0, 3, 8], 0, None),
        ([7], 0, None),
        ([0], 0, [5, 3, 8, 1, 1, 1, 1, 1, 1]),
        ([0], 4, [8, 9, 2, 7, 6]),
        ([0], 8, [3]),
        ([], 5, [9, 1, 1, 1]),
    ],
)
@pytest.mark.parametrize("sizes", [(1, 3), (2, 2)])
def test_where_a_prediction_leaves_its_source(
    held: list[int], start: int, predicted: list[int] | None, sizes: tuple[int, int]
) -> None:
    operands = [SOURCE, np.array(held, "int64"), np.array([start])]
    model, feeds = single(
        "BifurcationDetector",
        [*operands, predicted and np.array(predicted)],
        2,
        domain="com.microsoft",
        min_ngram_size=sizes[0],
        max_ngram_size=sizes[1],
    )
    compare(model, feeds)


@pytest.mark.parametrize(("start", "why"), [(-1, "from 0 to 8"), (9, "from 0 to 8"), (3, "be 6 ")])
def test_a_prediction_that_does_not_fit_its_source(start: int, why: str) -> None:
    operands = [SOURCE, np.array([0]), np.array([start]), np.array([1, 2])]
    model, feeds = single(
        "BifurcationDetector",
        operands,
        2,
        domain="com.microsoft",
        min_ngram_size=1,
        max_ngram_size=2,
    )
    with pytest.raises(RuntimeError, match=why):
        InferenceSession(model, ONE_THREAD).run(None, feeds)


@pytest.mark.parametrize("step", [1, -1, -2])
def test_the_largest_end_of_a_slice_is_none(step: int) -> None:
    operands = [value("x", FLOAT, [5])]
    bounds = [constant(n, [v]) for n, v in (("a", 3), ("b", (1 << 31) - 1), ("c", 0), ("d", step))]
    slices = [node("Slice", ["x", "a", "b", "c", "d"], ["y"])]
    model = make_model(slices, operands, [value("y", FLOAT, None)], bounds)
    x = np.arange(5, dtype="float32")
    compare(model, {"x": x})
    ends = [[np.array([bound]) for bound in (3, end, 0, step)] for end in ((1 << 31) - 1, 1)]
    model, feeds = single("Slice", [x, *ends[0]])
    compare(model, feeds, feeds | {"x2": ends[1][1]})


@pytest.mark.parametrize("kernel", [1, 2, 3])
@pytest.mark.parametrize("size", [10, 11, 12])
@pytest.mark.parametrize("mode", ["NOTSET", "SAME_UPPER", "SAME_LOWER"])
def test_what_no_window_of_a_transposed_convolution_reaches(
    kernel: int, size: int, mode: str
) -> None:
    x = np.arange(1, 5, dtype="float32").reshape(1, 1, 4)
    weights = np.arange(1, kernel + 1, dtype="float32").reshape(1, 1, kernel)
    settings = {"auto_pad": mode, "output_shape": [size], "strides": [3]}
    compare(*single("ConvTranspose", [x, weights, np.float32([0.5])], **settings))


@pytest.mark.parametrize("size", [4, 1, 0])
@pytest.mark.parametrize("start", [-100, -5, -1, 2, 100])
@pytest.mark.parametrize("end", [-(1 << 31) + 1, -100, -3, 0])
def test_slices_that_go_back_start_within_the_axis(size: int, start: int, end: int) -> None:
    """ONNX moves a start before the axis to its first place, where numpy finds nothing."""
    x = np.arange(size * 2, dtype="float32").reshape(size, 2)
    bounds = [np.array([each]) for each in (start, end, 0, -1)]
    compare(*single("Slice", [x, *bounds]))


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize(
    ("size", "factor"), [(10, 2.3), (10, 0.7), (9, 0.6), (3, 1.4), (100, 1.13)]
)
def test_a_resized_size_is_a_product_of_float32(mode: str, size: int, factor: float) -> None:
    """That of float64 may be below an integer: 22.99 for ten times 2.3."""
    x = np.random.default_rng(0).standard_normal((1, 2, 4, size)).astype("float32")
    scales = np.array([1, 1, 1, factor], "float32")
    model, feeds = single("Resize", [x, None, scales], opset=19, mode=mode)
    (theirs,) = stock(model).run(None, feeds)
    (ours,) = InferenceSession(model, ONE_THREAD).run(None, feeds)
    assert ours.shape == theirs.shape == (1, 2, 4, round(size * factor, 6) // 1)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [0, 1, 2, 3])
@pytest.mark.parametrize("step", [-3, -2, -1, 1, 2])
@pytest.mark.parametrize("fed", [False, True])
def test_bounds_of_slices_beyond_the_ends(size: int, step: int, fed: bool) -> None:
    """Backwards from before the first element is from the first one, unlike in numpy."""
    x = np.arange(size, dtype="float32")
    far = 2**40
    for start in (-far, -5, -2, -1, 0, 1, 5, far):
        for end in (-far, -5, -2, 0, 1, 5, far):
            bounds = [np.array([number]) for number in (start, end)]
            rest = {"axes": np.array([0]), "steps": np.array([step])}
            constants = rest if fed else {"start": bounds[0], "end": bounds[1], **rest}
            given = {"start": bounds[0], "end": bounds[1]} if fed else {}
            model = make_model(
                [node("Slice", ["x", "start", "end", "axes", "steps"], ["y"])],
                [value("x", FLOAT, ["n"]), *(value(name, INT64, [1]) for name in given)],
                [value("y", FLOAT, None)],
                [numpy_helper.from_array(array, name) for name, array in constants.items()],
            )
            feeds = {"x": x, **given}
            (theirs,) = stock(model).run(None, feeds)
            (ours,) = InferenceSession(model, ONE_THREAD).run(None, feeds)
            np.testing.assert_array_equal(ours, theirs, str((start, end)))
