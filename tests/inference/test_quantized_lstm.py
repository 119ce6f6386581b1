"""DynamicQuantizeLSTM beside onnxruntime, which rounds the input of all steps and each state to bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortmodule_py import InferenceSession
from tests.inference.test_session import ONE_THREAD

Array = np.ndarray[Any, Any]
RANDOM = np.random.default_rng(3)


def real(*sizes: int) -> Array:
    return RANDOM.standard_normal(sizes).astype(np.float32)


def model_of(
    inputs: int, hidden: int, direction: str, weights: dict[str, Array], feeds: list[str]
) -> bytes:
    names = ["x", "w", "r", "b", "lengths", "h", "c", "", "ws", "wz", "rs", "rz"]
    operands = [name if name in weights or name in feeds else "" for name in names]
    kinds = {"lengths": TensorProto.INT32}
    graph = helper.make_graph(
        [
            helper.make_node(
                "DynamicQuantizeLSTM",
                operands,
                ["y", "yh", "yc"],
                domain="com.microsoft",
                hidden_size=hidden,
                direction=direction,
            )
        ],
        "g",
        [helper.make_tensor_value_info(n, kinds.get(n, TensorProto.FLOAT), None) for n in feeds],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("y", "yh", "yc")],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return bytes(model.SerializeToString())


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize(("hidden", "steps"), [(5, 3), (33, 9), (80, 1), (100, 12)])
def test_one_sequence_is_onnxruntimes(direction: str, dtype: Any, hidden: int, steps: int) -> None:
    inputs, directions = 24, 2 if direction == "bidirectional" else 1
    low, high = (-128, 128) if dtype is np.int8 else (0, 256)
    weights: dict[str, Array] = {"b": real(directions, 8 * hidden)}
    for name, rows in (("w", inputs), ("r", hidden)):
        size = (directions, rows, 4 * hidden)
        weights[name] = RANDOM.integers(low, high, size).astype(dtype)
        per_channel = steps == 12  # of which onnxruntime takes one zero point
        scales = (directions, 4 * hidden) if per_channel else (directions,)
        weights[f"{name}s"] = RANDOM.uniform(0.001, 0.004, scales).astype(np.float32)
        weights[f"{name}z"] = np.full(scales, 0 if dtype is np.int8 else 128, dtype)
    feeds: dict[str, Array] = {"x": real(steps, 1, inputs) + 0.3}
    if steps != 3:
        feeds |= {"h": real(directions, 1, hidden), "c": real(directions, 1, hidden)}
    if steps == 9:
        feeds["lengths"] = np.array([7], np.int32)
        feeds["x"][7:] = 0  # onnxruntime leaves these steps out of the input's range
    model = model_of(inputs, hidden, direction, weights, list(feeds))
    theirs = onnxruntime.InferenceSession(model).run(None, feeds)
    for ours, wanted in zip(
        InferenceSession(model, ONE_THREAD).run(None, feeds), theirs, strict=True
    ):
        np.testing.assert_allclose(ours, wanted, atol=2e-3)
        assert np.abs(ours - wanted).mean() < 1e-4


def test_a_row_of_a_batch_is_rounded_by_itself() -> None:
    """So it does not depend on the others, but for the scale of the input."""
    hidden, inputs = 16, 8
    weights: dict[str, Array] = {}
    for name, rows in (("w", inputs), ("r", hidden)):
        weights[name] = RANDOM.integers(-128, 128, (1, rows, 4 * hidden)).astype(np.int8)
        weights |= {f"{name}s": np.full(1, 0.01, np.float32), f"{name}z": np.zeros(1, np.int8)}
    x = real(5, 6, inputs)
    x[:, :, 0] = np.array([-3, 3, -3, 3, -3], np.float32)[:, None]  # the same range for all
    session = InferenceSession(model_of(inputs, hidden, "forward", weights, ["x"]), ONE_THREAD)
    together = session.run(["y"], {"x": x.clip(-3, 3)})[0]
    for row in range(6):
        alone = session.run(["y"], {"x": x.clip(-3, 3)[:, row : row + 1]})[0]
        np.testing.assert_array_equal(together[:, :, row], alone[:, :, 0])
