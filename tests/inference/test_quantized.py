"""Quantized models: exact products of integers, whatever their types, zero points and sizes, and
weights that stay as small as their file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortmodule_py import InferenceSession

from .models import model_bytes

Array = np.ndarray[Any, Any]
RANGES = {np.uint8: (0, 256), np.int8: (-128, 128)}
TYPES = {np.uint8: TensorProto.UINT8, np.int8: TensorProto.INT8}
node = helper.make_node


def bytes_of(dtype: Any, sizes: tuple[int, ...], seed: int, extreme: bool = False) -> Array:
    random = np.random.default_rng(seed)
    low, high = RANGES[dtype]
    if extreme:  # what makes sums of 16 bits saturate
        return np.where(random.random(sizes) < 0.9, high - 1, low).astype(dtype)
    return random.integers(low, high, sizes).astype(dtype)


def products(a: Array, b: Array, a_zero: Array, b_zero: Array) -> Array:
    if a_zero.ndim == 1:
        a_zero = a_zero[:, None]
    centred = a.astype(np.int64) - a_zero, b.astype(np.int64) - b_zero
    return np.asarray(centred[0] @ centred[1])


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("a_type", [np.uint8, np.int8])
@pytest.mark.parametrize("b_type", [np.uint8, np.int8])
def test_matmul_integer_is_exact(a_type: Any, b_type: Any, constant: bool) -> None:
    for rows, inner, columns in ((1, 7, 3), (5, 67, 33), (17, 260, 130)):
        a = bytes_of(a_type, (rows, inner), 1, extreme=True)
        b = bytes_of(b_type, (inner, columns), 2, extreme=True)
        za, zb = bytes_of(a_type, (rows,), 3), bytes_of(b_type, (columns,), 4)
        inputs = {"a": (TYPES[a_type], ["m", inner]), "za": (TYPES[a_type], ["m"])}
        feeds, weights = {"a": a, "za": za}, {"b": b, "zb": zb}
        if not constant:
            inputs |= {"b": (TYPES[b_type], ["k", "n"]), "zb": (TYPES[b_type], ["n"])}
            feeds, weights = feeds | weights, {}
        model = model_bytes(
            [node("MatMulInteger", ["a", "b", "za", "zb"], ["y"])], inputs, ["y"], weights
        )
        session = InferenceSession(model)
        y = session.run(None, feeds)[0]
        assert y.dtype == np.int32
        assert np.array_equal(y, products(a, b, za, zb)), (rows, inner, columns)


def dynamic_product(columns: int, per_channel: bool) -> tuple[list[Any], dict[str, Array]]:
    """What quantize_dynamic writes for a linear layer of 64 inputs."""
    random = np.random.default_rng(0)
    sizes = (columns,) if per_channel else ()
    nodes = [
        node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        node("Mul", ["s", "w_scale"], ["scale"]),
        node("MatMulInteger", ["q", "w", "z", "w_zero"], ["sum"]),
        node("Cast", ["sum"], ["real"], to=TensorProto.FLOAT),
        node("Mul", ["real", "scale"], ["product"]),
        node("Add", ["product", "bias"], ["y"]),
    ]
    weights = {
        "w": bytes_of(np.int8, (64, columns), 1),
        "w_scale": random.uniform(0.01, 0.1, sizes).astype(np.float32),
        "w_zero": np.zeros(sizes, np.int8),
        "bias": random.standard_normal(columns).astype(np.float32),
    }
    return nodes, weights


def quantized(x: Array) -> tuple[Array, np.float32, int]:
    low, high = min(x.min(), np.float32(0)), max(x.max(), np.float32(0))
    scale = np.float32(1) if low == high else np.float32((high - low) / np.float32(255))
    zero = int(np.clip(np.rint(-low / scale), 0, 255))
    return np.clip(np.rint(x / scale) + zero, 0, 255).astype(np.int64), scale, zero


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("sizes", [(1, 64), (3, 7, 64)])
def test_a_dynamically_quantized_layer_is_one_product(
    sizes: tuple[int, ...], per_channel: bool
) -> None:
    nodes, weights = dynamic_product(40, per_channel)
    x = np.random.default_rng(5).standard_normal(sizes).astype(np.float32)
    dims = [*("abc"[: len(sizes) - 1]), 64]
    session = InferenceSession(model_bytes(nodes, {"x": (1, dims)}, ["y"], weights))
    y = session.run(None, {"x": x})[0]
    q, scale, zero = quantized(x)
    sums = (q - zero) @ weights["w"].astype(np.int64)
    wanted = sums.astype(np.float32) * (scale * weights["w_scale"]) + weights["bias"]
    assert np.array_equal(y, wanted)
    plan = session.plan({"x": x})
    assert "[PackedMatMulInteger]" in plan
    assert "steps (2 forward" in plan  # the other one quantizes x


def test_a_tensor_of_zeros_is_quantized_to_zeros() -> None:
    nodes, weights = dynamic_product(8, False)
    session = InferenceSession(model_bytes(nodes, {"x": (1, ["n", 64])}, ["y"], weights))
    y = session.run(None, {"x": np.zeros((2, 64), np.float32)})[0]
    assert np.array_equal(y, np.stack([weights["bias"]] * 2))


def test_packed_weights_replace_those_of_the_file() -> None:
    w = bytes_of(np.int8, (512, 2048), 1)
    nodes = [node("MatMulInteger", ["a", "w"], ["y"])]
    session = InferenceSession(
        model_bytes(nodes, {"a": (TensorProto.UINT8, ["m", 512])}, ["y"], {"w": w})
    )
    a = bytes_of(np.uint8, (3, 512), 2)
    assert np.array_equal(
        session.run(None, {"a": a})[0], products(a, w, np.asarray(0), np.asarray(0))
    )
    assert w.nbytes <= session.memory({"a": a.shape}).weights_bytes <= 1.05 * w.nbytes


# --- convolutions --------------------------------------------------------------------------------
def convolution(x: Array, w: Array, attrs: dict[str, Any]) -> Array:
    """In numpy, of centred integers; x is [N, C, H, W]."""
    strides, dilations = attrs.get("strides", [1, 1]), attrs.get("dilations", [1, 1])
    pads, group = attrs.get("pads", [0, 0, 0, 0]), attrs.get("group", 1)
    x = np.pad(x, ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])))
    reach = [d * (k - 1) + 1 for d, k in zip(dilations, w.shape[2:], strict=True)]
    windows = np.lib.stride_tricks.sliding_window_view(x, reach, (2, 3))
    windows = windows[:, :, :: strides[0], :: strides[1], :: dilations[0], :: dilations[1]]
    parts = [
        np.einsum("nchwij,ocij->nohw", part, kernel)
        for part, kernel in zip(np.split(windows, group, 1), np.split(w, group), strict=True)
    ]
    return np.concatenate(parts, 1)


CONVOLUTIONS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 9, 11), (5, 3, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((1, 4, 7, 7), (20, 4, 1, 1), {}),
    ((1, 4, 8, 9), (6, 2, 3, 2), {"group": 2, "strides": [2, 3], "pads": [2, 0, 1, 3]}),
    ((1, 6, 10, 40), (6, 1, 3, 5), {"group": 6, "pads": [1, 2, 1, 2], "strides": [1, 2]}),
    ((1, 2, 12, 12), (3, 2, 3, 3), {"dilations": [2, 3], "pads": [2, 3, 2, 3]}),
    ((1, 130, 5, 30), (17, 130, 3, 3), {"pads": [1, 1, 1, 1]}),
]


@pytest.mark.parametrize("x_type", [np.uint8, np.int8])
@pytest.mark.parametrize("w_type", [np.uint8, np.int8])
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_conv_integer_is_exact(case: Any, x_type: Any, w_type: Any) -> None:
    x_sizes, w_sizes, attrs = case
    x, w = bytes_of(x_type, x_sizes, 1, extreme=True), bytes_of(w_type, w_sizes, 2, extreme=True)
    zx, zw = bytes_of(x_type, (), 3), bytes_of(w_type, (w_sizes[0],), 4)
    model = model_bytes(
        [node("ConvInteger", ["x", "w", "zx", "zw"], ["y"], **attrs)],
        {"x": (TYPES[x_type], ["n", x_sizes[1], "h", "w_"]), "zx": (TYPES[x_type], [])},
        ["y"],
        {"w": w, "zw": zw},
    )
    y = InferenceSession(model).run(None, {"x": x, "zx": zx})[0]
    centred = w.astype(np.int64) - zw.astype(np.int64)[:, None, None, None]
    assert np.array_equal(y, convolution(x.astype(np.int64) - int(zx), centred, attrs))


def test_automatic_padding_of_integers() -> None:
    x, w = bytes_of(np.uint8, (1, 2, 6, 6), 1), bytes_of(np.int8, (3, 2, 3, 3), 2)
    model = model_bytes(
        [node("ConvInteger", ["x", "w"], ["y"], auto_pad="SAME_UPPER")],
        {"x": (TensorProto.UINT8, list(x.shape))},
        ["y"],
        {"w": w},
    )
    wanted = convolution(x.astype(np.int64), w.astype(np.int64), {"pads": [1, 1, 1, 1]})
    assert np.array_equal(InferenceSession(model).run(None, {"x": x})[0], wanted)


def test_a_quantized_gemm_turns_its_operands() -> None:
    a, b = bytes_of(np.uint8, (16, 5), 1), bytes_of(np.int8, (9, 16), 2)
    weights = {
        "a_scale": np.float32(0.5),
        "a_zero": np.uint8(7),
        "b": b,
        "b_scale": np.float32(0.25),
        "b_zero": bytes_of(np.int8, (9,), 3),
    }
    operands = ["a", "a_scale", "a_zero", "b", "b_scale", "b_zero"]
    gemm = node("QGemm", operands, ["y"], domain="com.microsoft", transA=1, transB=1)
    model = onnx.load_from_string(
        model_bytes(
            [gemm],
            {"a": (TensorProto.UINT8, [16, 5])},
            ["y"],
            {name: np.asarray(value) for name, value in weights.items()},
        )
    )
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    y = InferenceSession(model.SerializeToString()).run(None, {"a": a})[0]
    sums = products(a.T, b.T, np.asarray(7), weights["b_zero"].astype(np.int64))
    assert np.array_equal(y, sums.astype(np.float32) * np.float32(0.125))


# --- weights that stay small ---------------------------------------------------------------------
def small_weights(kind: str) -> tuple[list[Any], dict[str, Array], Array]:
    """Nodes that widen `w` [96, 300] to `wide`, the constants they read, and `wide` itself."""
    w, zero = bytes_of(np.int8, (96, 300), 1), bytes_of(np.int8, (300,), 2)
    scale = np.random.default_rng(3).uniform(0.01, 0.1, 300).astype(np.float32)
    if kind == "cast":
        nodes = [node("Cast", ["w"], ["c"], to=1), node("Mul", ["c", "s"], ["wide"])]
        return nodes, {"w": w, "s": np.float32(0.5)}, w * np.float32(0.5)
    if kind == "tensor":
        nodes = [node("DequantizeLinear", ["w", "s", "z"], ["wide"])]
        wide = (w.astype(np.float32) - np.float32(5)) * np.float32(0.25)
        return nodes, {"w": w, "s": np.float32(0.25), "z": np.int8(5)}, wide
    if kind == "rows":
        scale, zero = scale[:96], zero[:96]
        nodes = [node("DequantizeLinear", ["w", "s", "z"], ["wide"], axis=0)]
        wide = (w.astype(np.float32) - zero[:, None]) * scale[:, None]
    else:
        nodes = [node("DequantizeLinear", ["w", "s", "z"], ["wide"], axis=1)]
        wide = (w.astype(np.float32) - zero) * scale
    return nodes, {"w": w, "s": scale, "z": zero}, wide


WIDENED_BYTES = 96 * 300 * 4


@pytest.mark.parametrize("kind", ["cast", "tensor", "rows", "columns"])
@pytest.mark.parametrize("turned", [False, True])
def test_a_product_widens_weights_panel_by_panel(kind: str, turned: bool) -> None:
    nodes, weights, wide = small_weights(kind)
    x = np.random.default_rng(9).standard_normal((7, 300 if turned else 96)).astype(np.float32)
    if turned:
        wide = wide.T
        product = node("Gemm", ["x", "wide", "bias"], ["y"], transB=1)
        weights["bias"] = np.arange(96, dtype=np.float32)
    else:
        product = node("MatMul", ["x", "wide"], ["y"])
    model = model_bytes(
        [*nodes, product],
        {"x": (1, ["n", x.shape[1]])},
        ["y"],
        {name: np.asarray(value) for name, value in weights.items()},
    )
    session = InferenceSession(model)
    y = session.run(None, {"x": x})[0]
    wanted = x.astype(np.float64) @ wide.astype(np.float64) + (weights["bias"] if turned else 0)
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-3)
    memory = session.memory({"x": x.shape})
    small = sum(np.asarray(value).nbytes for value in weights.values())
    assert memory.weights_bytes <= 1.05 * small + 64
    assert memory.peak_bytes < WIDENED_BYTES / 2


@pytest.mark.parametrize("kind", ["cast", "tensor", "rows", "columns"])
@pytest.mark.parametrize("sizes", [(), (5,), (2, 3)])
def test_gather_widens_the_rows_that_it_reads(kind: str, sizes: tuple[int, ...]) -> None:
    nodes, weights, wide = small_weights(kind)
    model = model_bytes(
        [*nodes, node("Gather", ["wide", "i"], ["y"])],
        {"i": (TensorProto.INT64, list(sizes))},
        ["y"],
        {name: np.asarray(value) for name, value in weights.items()},
    )
    session = InferenceSession(model)
    i = np.random.default_rng(1).integers(0, 96, sizes)
    assert np.array_equal(session.run(None, {"i": i})[0], wide[i])
    if sizes:
        assert session.memory({"i": sizes}).peak_bytes < WIDENED_BYTES / 2


# --- 16 bits -------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
@pytest.mark.parametrize("reader", ["MatMul", "Gemm", "Gather", "both"])
def test_weights_of_16_bits_are_widened_where_they_are_read(reader: str, dtype: int) -> None:
    random = np.random.default_rng(1)
    wide = random.standard_normal((300, 210)).astype(np.float32)
    half = helper.make_tensor("w", dtype, wide.shape, wide.reshape(-1))
    wide = np.asarray(numpy_helper.to_array(half)).astype(np.float32)
    nodes = [node("Cast", ["w"], ["c"], to=TensorProto.FLOAT)]
    inputs: dict[str, tuple[int, list[Any]]] = {"x": (1, ["n", 300])}
    if reader in ("MatMul", "both"):
        nodes.append(node("MatMul", ["x", "c"], ["y"]))
    elif reader == "Gemm":
        nodes.append(node("Gemm", ["x", "c", "b"], ["y"], transB=1))
        inputs["x"] = (1, ["n", 210])
    if reader in ("Gather", "both"):
        nodes.append(node("Gather", ["c", "i"], ["g"]))
        inputs["i"] = (TensorProto.INT64, ["m"])
    bias = random.standard_normal(300).astype(np.float32)
    outputs = [name for each in nodes[1:] for name in each.output]
    model = onnx.load_from_string(model_bytes(nodes, inputs, outputs, {"b": bias}))
    model.graph.initializer.append(half)
    session = InferenceSession(model.SerializeToString())
    for rows in (1, 3, 5, 40):
        x = random.standard_normal((rows, int(inputs["x"][1][1]))).astype(np.float32)
        feeds: dict[str, Array] = {"x": x, "i": random.integers(0, 300, rows)}
        feeds = {name: feeds[name] for name in inputs if name != "x" or reader != "Gather"}
        if reader == "Gather":
            feeds["x"] = x
        results = dict(zip(outputs, session.run(None, feeds), strict=True))
        if "y" in results:
            right = wide.T if reader == "Gemm" else wide
            wanted = x.astype(np.float64) @ right + (bias if reader == "Gemm" else 0)
            np.testing.assert_allclose(results["y"], wanted, rtol=1e-5, atol=1e-4)
        if "g" in results:
            assert np.array_equal(results["g"], wide[feeds["i"]])
    memory = session.memory({name: (5, *array.shape[1:]) for name, array in feeds.items()})
    assert memory.weights_bytes <= 1.05 * (2 * wide.size + bias.nbytes)
    assert memory.peak_bytes < wide.nbytes / 4


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_products_in_16_bits_read_packed_weights(dtype: str) -> None:
    kind = TensorProto.FLOAT16 if dtype == "float16" else TensorProto.BFLOAT16
    random = np.random.default_rng(1)
    half = helper.make_tensor("w", kind, (300, 64), random.standard_normal(300 * 64))
    nodes = [
        node("Cast", ["x"], ["h"], to=kind),
        node("MatMul", ["h", "w"], ["p"]),
        node("Cast", ["p"], ["y"], to=TensorProto.FLOAT),
    ]
    model = onnx.load_from_string(model_bytes(nodes, {"x": (1, ["n", 300])}, ["y"]))
    model.graph.initializer.append(half)
    session = InferenceSession(model.SerializeToString())
    wide = np.asarray(numpy_helper.to_array(half)).astype(np.float64)
    whole = random.integers(-8, 8, (40, 300)).astype(np.float32)
    for rows in (1, 40):
        y = session.run(None, {"x": whole[:rows]})[0]
        wanted = whole[:rows].astype(np.float64) @ wide
        np.testing.assert_allclose(y, wanted, rtol=1e-2, atol=1e-2)
        assert "[PackedMatMul]" in session.plan({"x": whole[:rows]})
    # Of each row the same bits, whatever rows are computed with it.
    assert np.array_equal(session.run(None, {"x": whole[:1]})[0], y[:1])


# --- both factors dequantized (QDQ) --------------------------------------------------------------
def requantized(real: Array, scale: np.float32, zero: Array) -> Array:
    limits = np.iinfo(zero.dtype)
    rounded = np.rint(real / scale) + np.float32(zero)
    return np.clip(rounded, limits.min, limits.max).astype(zero.dtype)


def qdq_layer(conv: bool, relu: bool, y_type: Any) -> tuple[list[Any], dict[str, Array]]:
    """q -> DequantizeLinear -> layer of dequantized weights -> Relu? -> QuantizeLinear -> y."""
    random = np.random.default_rng(0)
    w = bytes_of(np.int8, (9, 5, 3, 3) if conv else (40, 9), 1)
    axis = 0 if conv else 1
    nodes = [
        node("DequantizeLinear", ["q", "qs", "qz"], ["x"]),
        node("DequantizeLinear", ["w", "ws", "wz"], ["v"], axis=axis),
        node("DequantizeLinear", ["b", "bs", "bz"], ["bias"], axis=0),
    ]
    if conv:
        nodes.append(node("Conv", ["x", "v", "bias"], ["p"], pads=[1, 1, 1, 1]))
    else:
        nodes += [node("MatMul", ["x", "v"], ["m"]), node("Add", ["m", "bias"], ["p"])]
    nodes += [node("Relu", ["p"], ["r"])] if relu else []
    nodes.append(node("QuantizeLinear", ["r" if relu else "p", "ys", "yz"], ["y"]))
    scales = random.uniform(0.01, 0.02, 9).astype(np.float32)
    weights = {
        "qs": np.asarray(np.float32(0.05)),
        "qz": np.asarray(np.uint8(119)),
        "w": w,
        "ws": scales,
        "wz": np.zeros(9, np.int8),
        "b": random.integers(-2000, 2000, 9).astype(np.int32),
        "bs": np.float32(0.05) * scales,
        "bz": np.zeros(9, np.int32),
        "ys": np.asarray(np.float32(0.9)),
        "yz": np.asarray(y_type(17)),
    }
    return nodes, weights


@pytest.mark.parametrize("y_type", [np.uint8, np.int8])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("conv", [False, True])
def test_dequantized_factors_are_one_product_of_integers(
    conv: bool, relu: bool, y_type: Any
) -> None:
    nodes, weights = qdq_layer(conv, relu, y_type)
    q = bytes_of(np.uint8, (2, 5, 6, 7) if conv else (6, 40), 7)
    dims = ["n", *q.shape[1:]]
    session = InferenceSession(model_bytes(nodes, {"q": (TensorProto.UINT8, dims)}, ["y"], weights))
    centred, w = q.astype(np.int64) - 119, weights["w"].astype(np.int64)
    axes = (slice(None), None, None) if conv else (slice(None),)
    sums = convolution(centred, w, {"pads": [1, 1, 1, 1]}) if conv else centred @ w
    bias = weights["b"].astype(np.float32) * weights["bs"]
    real = sums.astype(np.float32) * (np.float32(0.05) * weights["ws"])[axes] + bias[axes]
    wanted = requantized(np.maximum(real, 0) if relu else real, np.float32(0.9), weights["yz"])
    assert np.array_equal(session.run(None, {"q": q})[0], wanted)
    plan = session.plan({"q": q})
    assert "steps (1 forward" in plan, plan


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_a_quantized_convolution_is_one_step(case: Any) -> None:
    x_sizes, w_sizes, attrs = case
    random = np.random.default_rng(3)
    x, w = bytes_of(np.uint8, x_sizes, 1), bytes_of(np.int8, w_sizes, 2)
    channels = w_sizes[0]
    weights = {
        "xs": np.asarray(np.float32(0.02)),
        "xz": np.asarray(np.uint8(131)),
        "w": w,
        "ws": random.uniform(0.01, 0.02, channels).astype(np.float32),
        "wz": np.zeros(channels, np.int8),
        "ys": np.asarray(np.float32(0.37)),
        "yz": np.asarray(np.uint8(100)),
        "b": random.integers(-5000, 5000, channels).astype(np.int32),
    }
    operands = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz", "b"]
    model = model_bytes(
        [node("QLinearConv", operands, ["y"], **attrs)],
        {"x": (TensorProto.UINT8, ["n", x_sizes[1], "h", "w_"])},
        ["y"],
        weights,
    )
    session = InferenceSession(model)
    sums = convolution(x.astype(np.int64) - 131, w.astype(np.int64), attrs)
    sums = sums + weights["b"].astype(np.int64)[:, None, None]
    real = sums.astype(np.float32) * (np.float32(0.02) * weights["ws"])[:, None, None]
    wanted = requantized(real, np.float32(0.37), weights["yz"])
    assert np.array_equal(session.run(None, {"x": x})[0], wanted)
    assert "steps (1 forward" in session.plan({"x": x})


# --- LSTM ----------------------------------------------------------------------------------------
def as_bytes(x: Array, axis: int | None = None) -> Array:
    """What 255 steps of the range leave of x, or of its rows."""
    least = np.minimum(x.min(axis, keepdims=True), 0)
    scale = (np.maximum(x.max(axis, keepdims=True), 0) - least) / 255
    scale = np.where(scale == 0, 1, scale)
    zero = np.rint(-least / scale)
    return np.asarray((np.clip(np.rint(x / scale) + zero, 0, 255) - zero) * scale)


def lstm(x: Array, w: Array, r: Array, bias: Array, reverse: bool) -> Array:
    """One direction in float64 whose products see bytes; gates in ONNX's order i, o, f, c;
    w [I, 4 H], r [H, 4 H]."""
    x = as_bytes(x)
    hidden = r.shape[0]
    h, c = np.zeros((x.shape[1], hidden)), np.zeros((x.shape[1], hidden))
    y = np.zeros((*x.shape[:2], hidden))
    for t in reversed(range(len(x))) if reverse else range(len(x)):
        i, o, f, g = np.split(
            x[t] @ w + as_bytes(h, 1) @ r + bias[: 4 * hidden] + bias[4 * hidden :], 4, 1
        )
        i, o, f = (1 / (1 + np.exp(-gate)) for gate in (i, o, f))
        c = f * c + i * np.tanh(g)
        h = o * np.tanh(c)
        y[t] = h
    return y


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("per_channel", [False, True])
def test_a_quantized_lstm_reads_its_recurrent_weights_as_bytes(
    per_channel: bool, dtype: Any
) -> None:
    random = np.random.default_rng(2)
    inputs, hidden, steps, batch = 256, 72, 6, 3  # W has more than 64 KiB for each direction
    w = bytes_of(dtype, (2, inputs, 4 * hidden), 1)
    r = bytes_of(dtype, (2, hidden, 4 * hidden), 2)
    sizes = (2, 4 * hidden) if per_channel else (2,)
    weights: dict[str, Array] = {
        "w": w,
        "r": r,
        "b": random.standard_normal((2, 8 * hidden)).astype(np.float32),
    }
    for name in ("w", "r"):
        weights[f"{name}s"] = random.uniform(0.001, 0.002, sizes).astype(np.float32)
        weights[f"{name}z"] = bytes_of(dtype, sizes, 3)
    lstm_node = node(
        "DynamicQuantizeLSTM",
        ["x", "w", "r", "b", "", "", "", "", "ws", "wz", "rs", "rz"],
        ["y"],
        domain="com.microsoft",
        hidden_size=hidden,
        direction="bidirectional",
    )
    model = onnx.load_from_string(
        model_bytes([lstm_node], {"x": (1, ["t", "n", inputs])}, ["y"], weights)
    )
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    session = InferenceSession(model.SerializeToString())
    x = random.standard_normal((steps, batch, inputs)).astype(np.float32)
    y = session.run(None, {"x": x})[0]
    for d in range(2):
        real = [
            (weights[n][d].astype(np.float64) - weights[f"{n}z"][d].astype(np.float64))
            * weights[f"{n}s"][d]
            for n in ("w", "r")
        ]
        wanted = lstm(x.astype(np.float64), *real, weights["b"][d].astype(np.float64), d == 1)
        np.testing.assert_allclose(y[:, d], wanted, atol=5e-3)  # a byte may be rounded otherwise
        assert np.abs(y[:, d] - wanted).mean() < 2e-4
    plan = session.plan({"x": x})
    assert "[QuantizedLSTMSteps]" in plan
    memory = session.memory({"x": x.shape})
    assert memory.weights_bytes <= 1.06 * sum(array.nbytes for array in weights.values())


def test_long_sums_of_dequantized_factors_do_not_wrap_around() -> None:
    """Of more than 33,025 products of bytes, whose sum may be beyond 32 bits."""
    inner = 34_000
    x = np.full((2, inner), 255, np.float32)
    nodes = [
        node("QuantizeLinear", ["x", "one", "zero"], ["q"]),
        node("DequantizeLinear", ["q", "one", "zero"], ["wide_x"]),
        node("DequantizeLinear", ["w", "one", "zero"], ["wide_w"]),
        node("MatMul", ["wide_x", "wide_w"], ["y"]),
    ]
    weights = {
        "w": np.full((inner, 8), 255, np.uint8),
        "one": np.array(1, np.float32),
        "zero": np.array(0, np.uint8),
    }
    model = model_bytes(nodes, {"x": (TensorProto.FLOAT, ["n", inner])}, ["y"], weights)
    (y,) = InferenceSession(model).run(None, {"x": x})
    np.testing.assert_allclose(y, np.full((2, 8), 255.0 * 255.0 * inner), rtol=1e-5)


@pytest.mark.parametrize("source", ["file", "bytes"])
def test_large_weights_are_packed_once(source: str, tmp_path: Path) -> None:
    """From a file they take its size; the originals of a model in memory stay beside them."""
    w = bytes_of(np.int8, (1024, 3072), 1)
    model = model_bytes(
        [node("MatMulInteger", ["a", "w"], ["y"])],
        {"a": (TensorProto.UINT8, ["m", 1024])},
        ["y"],
        {"w": w},
    )
    path = tmp_path / "m.onnx"
    path.write_bytes(model)
    session = InferenceSession(str(path) if source == "file" else model)
    a = bytes_of(np.uint8, (2, 1024), 2)
    (y,) = session.run(None, {"a": a})
    np.testing.assert_array_equal(y, a.astype(np.int64) @ w)
    assert "[PackedMatMulInteger]" in session.plan({"a": a})
    held = session.memory({"a": a.shape}).weights_bytes
    expected = w.nbytes * (2 if source == "bytes" else 1)
    assert expected <= held <= 1.05 * expected


@pytest.mark.parametrize("spread", [25, 33, 60, 1000])
def test_products_that_could_saturate_are_exact(spread: int) -> None:
    """Weights with few, more and too many large neighbours for sums of 16 bits, and the ends alone."""
    random = np.random.default_rng(spread)
    w = np.clip(random.standard_normal((1100, 80)) * spread, -128, 127).astype(np.int8)
    a = random.choice(np.array([0, 254, 255], np.uint8), (9, 1100), p=[0.1, 0.1, 0.8])
    inputs = {"a": (TensorProto.UINT8, ["m", 1100])}
    model = model_bytes([node("MatMulInteger", ["a", "w"], ["y"])], inputs, ["y"], {"w": w})
    (y,) = InferenceSession(model).run(None, {"a": a})
    np.testing.assert_array_equal(y, a.astype(np.int64) @ w)
