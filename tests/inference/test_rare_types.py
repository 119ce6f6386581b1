"""Unsigned integers, floats of 4 and 8 bits and integers of 2 and 4: casts, constants, arithmetic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from ortmodule_py import InferenceSession, SessionOptions
from tests.inference.test_data_sizes import compare, stock
from tests.inference.test_operators_of_onnxruntime import single
from tests.inference.test_session import ONE_THREAD

FLOATS = {
    TensorProto.FLOAT8E4M3FN: ml_dtypes.float8_e4m3fn,
    TensorProto.FLOAT8E4M3FNUZ: ml_dtypes.float8_e4m3fnuz,
    TensorProto.FLOAT8E5M2: ml_dtypes.float8_e5m2,
    TensorProto.FLOAT8E5M2FNUZ: ml_dtypes.float8_e5m2fnuz,
    TensorProto.FLOAT8E8M0: ml_dtypes.float8_e8m0fnu,
    TensorProto.FLOAT4E2M1: ml_dtypes.float4_e2m1fn,
}
INTEGERS = {
    TensorProto.INT4: ml_dtypes.int4,
    TensorProto.UINT4: ml_dtypes.uint4,
    TensorProto.INT2: ml_dtypes.int2,
    TensorProto.UINT2: ml_dtypes.uint2,
}
UNSIGNED = {
    TensorProto.UINT16: "uint16",
    TensorProto.UINT32: "uint32",
    TensorProto.UINT64: "uint64",
}


def model_of(
    nodes: list[Any], inputs: dict[str, int], outputs: dict[str, int], weights: Any = ()
) -> Any:
    graph = helper.make_graph(
        nodes,
        "types",
        [helper.make_tensor_value_info(name, kind, None) for name, kind in inputs.items()],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()],
        list(weights),
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=11)


def run(model: Any, **feeds: Any) -> Any:
    return InferenceSession(model.SerializeToString(), ONE_THREAD).run(None, feeds)


def cast(x: Any, source: int, to: int, **attributes: Any) -> Any:
    nodes = [helper.make_node("Cast", ["x"], ["y"], to=to, **attributes)]
    return run(model_of(nodes, {"x": source}, {"y": to}), x=x)[0]


def bits(x: Any) -> Any:
    return np.ascontiguousarray(x).view("uint8")


def numbers(dtype: Any) -> Any:
    """What lies on, between and beyond the numbers of a type."""
    exact = np.arange(256, dtype="uint8").view(dtype).astype("float32").reshape(-1)
    exact = np.unique(exact[np.isfinite(exact)])
    between = (exact[1:] + exact[:-1]) / 2
    near = np.concatenate([np.nextafter(between, np.float32(sign)) for sign in (-1e30, 1e30)])
    beyond = np.array([0.0, -0.0, 1e-30, 1e30, -1e30, np.inf, -np.inf, np.nan], "float32")
    return np.concatenate([exact, between, near, beyond]).astype("float32")


@pytest.mark.parametrize("kind", FLOATS)
def test_narrow_floats_are_rounded_as_onnx_says(kind: int) -> None:
    dtype = np.dtype(FLOATS[kind])
    count = 16 if kind == TensorProto.FLOAT4E2M1 else 256
    every = np.arange(count, dtype="uint8").view(dtype)
    np.testing.assert_array_equal(cast(every, kind, TensorProto.FLOAT), every.astype("float32"))
    x = np.abs(numbers(dtype)) if kind == TensorProto.FLOAT8E8M0 else numbers(dtype)
    for saturate in (0, 1):
        attributes: dict[str, Any] = {"saturate": saturate}
        modes = ("up", "down", "nearest") if kind == TensorProto.FLOAT8E8M0 else ("up",)
        for mode in modes:
            attributes["round_mode"] = mode
            reference = ReferenceEvaluator(
                model_of(
                    [helper.make_node("Cast", ["x"], ["y"], to=kind, **attributes)],
                    {"x": TensorProto.FLOAT},
                    {"y": kind},
                )
            )
            (wanted,) = reference.run(None, {"x": x})
            got = cast(x, TensorProto.FLOAT, kind, **attributes)
            assert got.dtype == dtype
            nan = np.isnan(wanted.astype("float32"))
            np.testing.assert_array_equal(np.isnan(got.astype("float32")), nan)
            np.testing.assert_array_equal(bits(got)[~nan], bits(wanted)[~nan])


@pytest.mark.parametrize("kind", INTEGERS)
def test_narrow_integers_wrap_around(kind: int) -> None:
    dtype = np.dtype(INTEGERS[kind])
    x = np.arange(-20, 40, dtype="int32")
    got = cast(x, TensorProto.INT32, kind)
    np.testing.assert_array_equal(got.astype("int32"), x.astype(dtype).astype("int32"))
    for to, name in ((TensorProto.INT64, "int64"), (TensorProto.FLOAT16, "float16")):
        np.testing.assert_array_equal(cast(got, kind, to), got.astype(name))


@pytest.mark.parametrize("kind", [*INTEGERS, *FLOATS])
def test_constants_of_few_bits(kind: int) -> None:
    """Elements share bytes in the file, whatever holds them there, and move as others do."""
    dtype = np.dtype({**INTEGERS, **FLOATS}[kind])
    x = np.arange(15, dtype="uint8").view(dtype).reshape(3, 5)
    if kind in INTEGERS:
        x = np.arange(15).astype(dtype).reshape(3, 5)
    nodes = [
        helper.make_node("Concat", ["w", "w"], ["twice"], axis=1),
        helper.make_node("Gather", ["twice", "rows"], ["picked"]),
        helper.make_node("Transpose", ["picked"], ["turned"]),
        helper.make_node("Cast", ["turned"], ["y"], to=TensorProto.FLOAT),
    ]
    wanted = np.concatenate([x, x], axis=1)[[2, 0]].T.astype("float32")
    stored = [numpy_helper.from_array(x, "w")]
    if kind != TensorProto.FLOAT8E8M0:  # whose smallest number the helper rounds
        stored.append(helper.make_tensor("w", kind, x.shape, x.astype("float32").reshape(-1)))
    for weight in stored:
        rows = helper.make_tensor("rows", TensorProto.INT64, [2], [2, 0])
        model = model_of(nodes, {}, {"y": TensorProto.FLOAT}, [weight, rows])
        np.testing.assert_array_equal(run(model)[0], wanted)


@pytest.mark.parametrize("kind", UNSIGNED)
def test_arithmetic_of_unsigned_integers(kind: int) -> None:
    dtype = np.dtype(UNSIGNED[kind])
    random = np.random.default_rng(0)
    limits = np.iinfo(dtype)
    a = random.integers(0, limits.max, 300, dtype=dtype, endpoint=True)
    b = random.integers(1, limits.max, 300, dtype=dtype, endpoint=True)
    b[:100] = random.integers(1, 9, 100)
    a[0], b[0] = limits.max, limits.max
    with np.errstate(over="ignore"):
        expected = {
            "Add": a + b,
            "Sub": a - b,
            "Mul": a * b,
            "Div": a // b,
            "Mod": a % b,
            "Max": np.maximum(a, b),
            "Min": np.minimum(a, b),
            "Less": a < b,
            "GreaterOrEqual": a >= b,
            "BitwiseXor": a ^ b,
        }
        reduced = {
            "ReduceMax": a.max(keepdims=True),
            "ReduceMin": a.min(keepdims=True),
            "ReduceSum": a.sum(keepdims=True, dtype=dtype),
        }
    nodes = [helper.make_node(op, ["a", "b"], [op]) for op in expected]
    nodes += [helper.make_node(op, ["a"], [op]) for op in reduced]
    nodes.append(helper.make_node("Cast", ["a"], ["number"], to=TensorProto.FLOAT))
    kinds = dict.fromkeys([*expected, *reduced], kind) | {
        "Less": TensorProto.BOOL,
        "GreaterOrEqual": TensorProto.BOOL,
        "number": TensorProto.FLOAT,
    }
    results = run(model_of(nodes, {"a": kind, "b": kind}, kinds), a=a, b=b)
    wanted = {**expected, **reduced, "number": a.astype("float32")}
    for name, result in zip(kinds, results, strict=True):
        np.testing.assert_array_equal(result, wanted[name], err_msg=name)
        assert result.dtype == wanted[name].dtype


@pytest.mark.parametrize("kind", [*UNSIGNED, TensorProto.FLOAT8E4M3FN, TensorProto.INT4])
def test_rows_written_to_a_cache(kind: int) -> None:
    dtype = np.dtype({**UNSIGNED, **FLOATS, **INTEGERS}[kind])
    cache, rows = np.arange(8).astype(dtype).reshape(4, 2), np.array([[3, 1], [2, 0]]).astype(dtype)
    places = np.array([[3], [1]])
    nodes = [helper.make_node("ScatterND", ["cache", "places", "rows"], ["y"])]
    kinds = {"cache": kind, "places": TensorProto.INT64, "rows": kind}
    (y,) = run(model_of(nodes, kinds, {"y": kind}), cache=cache, places=places, rows=rows)
    wanted = cache.copy()
    wanted[places[:, 0]] = rows
    np.testing.assert_array_equal(y.astype("float32"), wanted.astype("float32"))


def test_quantized_weights_of_four_bits() -> None:
    """A product with a weight of blocks of int4, as quantizers write it."""
    random = np.random.default_rng(1)
    w = random.integers(-8, 8, (8, 6))
    scale = random.random((2, 6)).astype("float32")
    x = random.standard_normal((3, 8)).astype("float32")
    model = model_of(
        [
            helper.make_node("DequantizeLinear", ["w", "scale"], ["wide"], axis=0, block_size=4),
            helper.make_node("MatMul", ["x", "wide"], ["y"]),
        ],
        {"x": TensorProto.FLOAT},
        {"y": TensorProto.FLOAT},
        [
            helper.make_tensor("w", TensorProto.INT4, w.shape, w.reshape(-1).tolist()),
            helper.make_tensor("scale", TensorProto.FLOAT, scale.shape, scale.reshape(-1).tolist()),
        ],
    )
    wanted = x @ (w * np.repeat(scale, 4, axis=0))
    np.testing.assert_allclose(run(model, x=x)[0], wanted, rtol=1e-5)


def test_optimized_models_keep_their_types(tmp_path: Path) -> None:
    path = tmp_path / "optimized.onnx"
    values = [3.0, -8.0, 7.0, 0.0, 1.0, -1.0]
    model = model_of(
        [
            helper.make_node("Cast", ["x"], ["small"], to=TensorProto.FLOAT8E5M2, saturate=0),
            helper.make_node("Concat", ["small", "small"], ["twice"], axis=0),
            helper.make_node("Cast", ["twice"], ["wide"], to=TensorProto.FLOAT),
            helper.make_node("Gather", ["w", "rows"], ["picked"]),
            helper.make_node("Cast", ["picked"], ["numbers"], to=TensorProto.FLOAT),
            helper.make_node("Mul", ["wide", "numbers"], ["y"]),
        ],
        {"x": TensorProto.FLOAT, "rows": TensorProto.INT64},
        {"y": TensorProto.FLOAT},
        [helper.make_tensor("w", TensorProto.INT4, [6], values)],
    )
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", TensorProto.FLOAT, [2]))
    model.graph.input[1].CopyFrom(helper.make_tensor_value_info("rows", TensorProto.INT64, [4]))
    feeds = {"x": np.array([1.3, 1e30], "float32"), "rows": np.array([1, 2, 5, 0])}
    options = SessionOptions()
    options.optimized_model_filepath = str(path)
    (wanted,) = InferenceSession(model.SerializeToString(), options).run(None, feeds)
    (got,) = InferenceSession(str(path), ONE_THREAD).run(None, feeds)
    np.testing.assert_array_equal(got, wanted)
    np.testing.assert_array_equal(got, [-10, np.inf, -1.25, np.inf])


def test_strings_are_refused_with_the_node_that_reads_them() -> None:
    nodes = [helper.make_node("Add", ["x", "x"], ["y"], name="join")]
    model = model_of(nodes, {"x": TensorProto.STRING}, {"y": TensorProto.STRING})
    with pytest.raises(RuntimeError, match="Add 'join'"):
        run(model, x=np.array(["a"]))


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_means_of_integers_round_towards_zero(dtype: str) -> None:
    x = np.array([[-7, 2], [0, 0], [9, 8]], dtype)
    for axes in ({}, {"axes": [1]}, {"axes": [0], "keepdims": 0}):
        compare(*single("ReduceMean", [x], opset=13, **axes))


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_means_of_no_integers_are_nothing(dtype: str) -> None:
    compare(*single("ReduceMean", [np.zeros((2, 0, 3), dtype), np.array([1])]))


@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMin"])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "float32"])
def test_extrema_of_nothing_are_limits(op: str, dtype: str) -> None:
    compare(*single(op, [np.zeros((2, 0, 3), dtype)], opset=13, axes=[1]))


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("exponent", [2, 3])
def test_powers_of_integers_wrap_around(dtype: str, exponent: int) -> None:
    least = np.iinfo(dtype).min
    x = np.array([least, least + 1, 100_000, 3_000_000_019 % (1 << 31), -5, 0], dtype)
    compare(*single("Pow", [x, np.array(exponent, dtype)], opset=15))


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "int16", "uint64"])
def test_arithmetic_of_integers_wraps_around(dtype: str) -> None:
    limits = np.iinfo(dtype)
    a = np.array([limits.max, limits.min, 3, limits.max // 2, 7], dtype)
    b = np.array([limits.max, 1, limits.max, 5, limits.min], dtype)
    for op, formula in {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply}.items():
        model, named = single(op, [a, b], opset=14)
        (found,) = InferenceSession(model).run(None, named)
        np.testing.assert_array_equal(found, formula(a, b))


@pytest.mark.parametrize("reduction", ["max", "min"])
@pytest.mark.parametrize("op", ["ScatterElements", "ScatterND"])
def test_extrema_of_unsigned_integers_are_scattered(op: str, reduction: str) -> None:
    """Above 2^63, where int64 has another order."""
    x = np.array([1, (1 << 63) + 5, 1 << 62, 7], "uint64")
    index = np.array([1, 2, 2, 0]) if op == "ScatterElements" else np.array([[1], [2], [2], [0]])
    updates = np.array([9, 1 << 63, 3, (1 << 64) - 1], "uint64")
    compare(*single(op, [x, index, updates], reduction=reduction))


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_logarithms_of_sums_of_integers(dtype: str) -> None:
    x = np.array([[1, 7, 30], [2, 0, 1]], dtype)
    compare(*single("ReduceLogSum", [x, np.array([1])], keepdims=0))


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "uint64"])
def test_constants_of_unsigned_integers(dtype: str) -> None:
    number = numpy_helper.from_array(np.array([60_000], dtype))
    compare(*single("ConstantOfShape", [np.array([2, 3])], value=number))


def test_what_16_bits_hold_is_scaled_in_32() -> None:
    """65535 is no float16, and a quotient rounded to float16 may be a tie."""
    x = np.array([65535, 40_001, 7], "uint16")
    compare(*single("DequantizeLinear", [x, np.array(0.2, "float16")], opset=21))
    real = np.random.default_rng(1).normal(0, 20, (60, 50)).astype("float16")
    feeds = [real, np.array(0.37, "float16"), np.array(3, "uint8")]
    model, named = single("QuantizeLinear", feeds, opset=21)
    compare(model, named)


@pytest.mark.parametrize("dtype", ["uint8", "int32"])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("outside", [0, 1])
def test_smoothed_images_of_integers_are_rounded_after_each_axis(
    dtype: str, mode: str, outside: int
) -> None:
    """As in models that prepare images: onnxruntime's and Pillow's bytes."""
    image = np.random.default_rng(1).integers(0, 256, (1, 3, 23, 31)).astype(dtype)
    image[:, :, 5:9] = [[[[0]], [[255]], [[0]]]]
    model, feeds = single(
        "Resize",
        [image, None, None, np.array([1, 3, 11, 40])],
        opset=19,
        mode=mode,
        antialias=1,
        exclude_outside=outside,
    )
    ours = InferenceSession(model, ONE_THREAD).run(None, feeds)[0]
    theirs = stock(model).run(None, feeds)[0]
    assert ours.dtype == theirs.dtype
    # Their weights are fixed-point numbers: in the middle of two bytes they may choose the other one.
    assert np.abs(ours.astype(int) - theirs.astype(int)).max() <= 1
    assert (ours == theirs).mean() > 0.98
