"""Mixtures of experts (MoE, QMoE), beside stock onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from ortmodule_py import InferenceSession, SessionOptions
from ortmodule_py.inference import Fail

from .models import model_bytes
from .test_few_bits import in_bytes

Array = np.ndarray[Any, Any]
SIZE, HIDDEN, EXPERTS = 64, 32, 4


def random_array(*shape: int, seed: int = 0, scale: float = 1.0) -> Array:
    values = np.random.default_rng(seed).standard_normal(shape) * scale
    return values.astype(np.float32)


def model_of(op: str, names: list[str], weights: dict[str, Array], **attributes: Any) -> bytes:
    node = helper.make_node(op, names, ["y"], domain="com.microsoft", **attributes)
    given = {"x": (1, ["n", SIZE]), "scores": (1, ["n", EXPERTS])}
    if "shares" in names:
        given["shares"] = (1, ["n", EXPERTS])
    model = onnx.load_from_string(model_bytes([node], given, ["y"], weights))
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return model.SerializeToString()


def compare(model: bytes, tokens: int, shares: bool = False, rtol: float = 1e-4) -> None:
    feeds = {
        "x": random_array(tokens, SIZE, seed=7),
        "scores": random_array(tokens, EXPERTS, seed=8),
    }
    if shares:
        feeds["shares"] = np.abs(random_array(tokens, EXPERTS, seed=9))
    stock = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    (expected,) = stock.run(None, feeds)
    (y,) = InferenceSession(model).run(None, feeds)
    assert y.dtype == expected.dtype
    np.testing.assert_allclose(y, expected, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("tokens", [1, 3, 70])
@pytest.mark.parametrize("normalized", [0, 1])
@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", "identity", "swiglu"])
def test_experts_of_floats(activation: str, normalized: int, tokens: int) -> None:
    rows = 2 * HIDDEN if activation == "swiglu" else HIDDEN
    weights = {
        "w1": random_array(EXPERTS, rows, SIZE, scale=0.2),
        "b1": random_array(EXPERTS, rows),
        "w2": random_array(EXPERTS, SIZE, HIDDEN, seed=1, scale=0.2),
    }
    gated: dict[str, Any] = {"swiglu_fusion": 1, "activation_alpha": 1.7, "swiglu_limit": 1.0}
    model = model_of(
        "MoE",
        ["x", "scores", "w1", "b1", "w2"],
        weights,
        k=2,
        activation_type=activation,
        normalize_routing_weights=normalized,
        **gated if activation == "swiglu" else {},
    )
    compare(model, tokens)


def quantized(columns: int, inner: int, bits: int, block: int, seed: int) -> list[Array]:
    """Weights, scales and zero points."""
    random = np.random.default_rng(seed)
    each = block or inner
    shape = (EXPERTS, columns, inner // each)
    numbers = random.integers(0, 1 << bits, (EXPERTS * columns, inner))
    points = random.integers(0, 1 << bits, shape)
    scales = random.uniform(0.1, 0.5, shape).astype(np.float32) / (1 << bits)
    packed = in_bytes(numbers.astype(np.uint8), bits).reshape(EXPERTS, columns, -1)
    by_row = points if block else points[..., 0]
    rows = in_bytes(by_row.reshape(-1, by_row.shape[-1]).astype(np.uint8), bits)
    zeros = rows.reshape(*by_row.shape[:-1], -1)
    return [packed, scales if block else scales[..., 0], zeros]


def quantized_model(bits: int, block: int, zeros: bool, shares: bool, level: int = 0) -> bytes:
    first, second = (
        quantized(2 * HIDDEN, SIZE, bits, block, 1),
        quantized(SIZE, HIDDEN, bits, block, 2),
    )
    weights = dict(zip(["w1", "s1", "z1", "w2", "s2", "z2"], [*first, *second], strict=True))
    points = ["z1", "z2"] if zeros else ["", ""]
    names = ["x", "scores", "w1", "s1", "", "w2", "s2", "", "", "", "", *points, ""]
    attributes: dict[str, Any] = {"block_size": block} if block else {}
    return model_of(
        "QMoE",
        [*names, "shares"] if shares else names,
        weights,
        k=2,
        activation_type="swiglu",
        swiglu_fusion=1,
        expert_weight_bits=bits,
        accuracy_level=level,
        normalize_routing_weights=1,
        **attributes,
    )


@pytest.mark.parametrize("tokens", [1, 5, 70])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("block", [0, 16, 32])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_experts_of_few_bits(bits: int, block: int, zeros: bool, tokens: int) -> None:
    # Blocks of 8 bits are multiplied by x rounded to 8 bits.
    rounded = bits == 8 and block > 0
    compare(quantized_model(bits, block, zeros, False), tokens, rtol=3e-2 if rounded else 1e-4)


def test_weights_of_results_that_are_no_scores() -> None:
    compare(quantized_model(4, 32, False, True), 5, shares=True)


def test_more_experts_than_there_are_is_refused() -> None:
    weights = {
        "w1": random_array(EXPERTS, HIDDEN, SIZE),
        "w2": random_array(EXPERTS, SIZE, HIDDEN),
    }
    model = model_of("MoE", ["x", "scores", "w1", "", "w2"], weights, k=EXPERTS + 1)
    feeds = {"x": random_array(2, SIZE), "scores": random_array(2, EXPERTS)}
    with pytest.raises(Fail, match="k must be from 1 to 4, but found 5"):
        InferenceSession(model).run(None, feeds)


def test_experts_are_in_no_optimized_file(tmp_path: Path) -> None:
    """Their products have no form in ONNX's operators; the session runs all the same."""
    options = SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    feeds = {"x": random_array(2, SIZE), "scores": random_array(2, EXPERTS)}
    InferenceSession(quantized_model(4, 32, False, False), options).run(None, feeds)
    assert not (tmp_path / "optimized.onnx").exists()
