"""MatMulNBits: weights of 2, 4 and 8 bits in blocks, beside stock onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from ortmodule_py import InferenceSession

from .models import model_bytes

Array = np.ndarray[Any, Any]
SIZE = 32  # of a block


def in_bytes(numbers: Array, bits: int) -> Array:
    """The last axis packed into bytes, the first number in the lowest bits."""
    each = 8 // bits
    padded = np.pad(numbers, ((0, 0), (0, -numbers.shape[-1] % each)))
    parts = padded.reshape(*numbers.shape[:-1], -1, each).astype(np.uint16)
    return (parts << (bits * np.arange(each))).sum(-1).astype(np.uint8)


def product(
    inner: int, columns: int, bits: int, zeros: bool, level: int | None = None
) -> tuple[bytes, Array]:
    """A model of one product, and its weights [inner, columns] in double precision."""
    random = np.random.default_rng(0)
    end = 1 << bits
    blocks = -(-inner // SIZE)
    q = random.integers(0, end, (columns, blocks * SIZE)).astype(np.uint8)
    scales = random.uniform(0.01, 0.1, (columns, blocks)).astype(np.float32)
    points = random.integers(0, end, (columns, blocks)).astype(np.uint8)
    weights = {
        "w": in_bytes(q, bits).reshape(columns, blocks, SIZE * bits // 8),
        "s": scales.reshape(-1),
    }
    if zeros:
        weights["z"] = in_bytes(points, bits).reshape(-1)
    else:
        points[:] = end // 2
    attrs = {"K": inner, "N": columns, "bits": bits, "block_size": SIZE}
    if level is not None:
        attrs["accuracy_level"] = level
    node = helper.make_node("MatMulNBits", ["x", *weights], ["y"], domain="com.microsoft", **attrs)
    model = onnx.load_from_string(model_bytes([node], {"x": (1, ["n", inner])}, ["y"], weights))
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    real = q.astype(np.float64).reshape(columns, blocks, SIZE) - points[:, :, None]
    real = (real * scales[:, :, None]).reshape(columns, -1)
    return model.SerializeToString(), real[:, :inner].T


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(("inner", "columns"), [(64, 5), (100, 37), (640, 40)])
def test_products_of_weights_of_few_bits(inner: int, columns: int, zeros: bool, bits: int) -> None:
    model, weights = product(inner, columns, bits, zeros)
    x = np.random.default_rng(1).standard_normal((3, inner)).astype(np.float32)
    y = InferenceSession(model).run(None, {"x": x})[0]
    np.testing.assert_allclose(y, x.astype(np.float64) @ weights, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("level", [0, 1, 4])
@pytest.mark.parametrize("rows", [1, 5])
def test_rows_are_rounded_at_level_4_alone(rows: int, level: int) -> None:
    model, weights = product(640, 40, 4, True, level)
    x = np.random.default_rng(1).standard_normal((rows, 640)).astype(np.float32)
    y = InferenceSession(model).run(None, {"x": x})[0]
    exact = x.astype(np.float64) @ weights
    error = np.abs(y - exact).max() / np.abs(exact).max()
    if level < 4 or "rounded" not in InferenceSession(model).plan({"x": x}):
        assert error < 1e-5
        return
    assert 1e-4 < error < 0.02
    cpu = ["CPUExecutionProvider"]
    stock = onnxruntime.InferenceSession(model, providers=cpu).run(None, {"x": x})[0]
    np.testing.assert_allclose(y, stock, rtol=0, atol=1e-5 * np.abs(exact).max())
