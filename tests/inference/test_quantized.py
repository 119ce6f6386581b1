"""Quantized models: exact products of integers, whatever their types, zero points and sizes, and
weights that stay as small as their file."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from ortmodule_py import InferenceSession

from .test_session import model_bytes

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


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(("inner", "columns"), [(64, 5), (100, 37), (640, 40)])
def test_products_of_weights_of_4_bits(inner: int, columns: int, zeros: bool) -> None:
    random = np.random.default_rng(0)
    size = 32
    blocks = -(-inner // size)
    q = random.integers(0, 16, (columns, blocks * size)).astype(np.uint8)
    scales = random.uniform(0.01, 0.1, (columns, blocks)).astype(np.float32)
    points = random.integers(0, 16, (columns, blocks + blocks % 2)).astype(np.uint8)
    weights = {
        "w": (q[:, ::2] | (q[:, 1::2] << 4)).reshape(columns, blocks, size // 2),
        "s": scales.reshape(-1),
    }
    if zeros:
        weights["z"] = (points[:, ::2] | (points[:, 1::2] << 4)).reshape(-1)
    else:
        points[:] = 8
    product = node(
        "MatMulNBits",
        ["x", *weights],
        ["y"],
        domain="com.microsoft",
        K=inner,
        N=columns,
        bits=4,
        block_size=size,
    )
    model = onnx.load_from_string(model_bytes([product], {"x": (1, ["n", inner])}, ["y"], weights))
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    x = random.standard_normal((3, inner)).astype(np.float32)
    y = InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]
    real = (q.astype(np.float64).reshape(columns, blocks, size) - points[:, :blocks, None]) * (
        scales[:, :, None]
    )
    wanted = x.astype(np.float64) @ real.reshape(columns, -1)[:, :inner].T
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-3)
