"""Dynamically quantized products beside stock onnxruntime and torch, one thread.

    python -m benchmarks.integer_products

Each row is a linear layer as quantize_dynamic writes it (five nodes), with normally distributed
weights: GOP/s of processor time, the best of interleaved rounds, and the largest error of each
runtime against exact integers, of the largest output. Stock saturates where a processor has no
instruction for such products (AVX2), so its error there is no rounding.
"""

from __future__ import annotations

import math
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper

from ortmodule_py import InferenceSession, SessionOptions

Array = np.ndarray[Any, Any]
# rows, inner, columns
PRODUCTS = [
    (1, 768, 3072),
    (16, 768, 3072),
    (128, 768, 768),
    (128, 768, 3072),
    (512, 768, 3072),
    (512, 3072, 768),
]
SECONDS = 1.5  # for each row and type


def quantized_weights(inner: int, columns: int, unsigned: bool) -> tuple[Array, float]:
    w = np.random.default_rng(0).standard_normal((inner, columns))
    scale = float(abs(w).max()) / 127
    q = np.clip(np.rint(w / scale), -127, 127).astype(np.int8)
    return (q.astype(np.int16) + 128).astype(np.uint8) if unsigned else q, scale


def layer(inner: int, w: Array, scale: float) -> bytes:
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("Mul", ["s", "w_scale"], ["scale"]),
        helper.make_node("MatMulInteger", ["q", "w", "z", "w_zero"], ["sum"]),
        helper.make_node("Cast", ["sum"], ["real"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["real", "scale"], ["y"]),
    ]
    weights = {
        "w": w,
        "w_scale": np.array(scale, np.float32),
        "w_zero": np.array(128 if w.dtype == np.uint8 else 0, w.dtype),
    }
    graph = helper.make_graph(
        nodes,
        "layer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["m", inner])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["m", w.shape[1]])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


def exact(x: Array, w: Array, scale: float) -> Array:
    low, high = min(x.min(), np.float32(0)), max(x.max(), np.float32(0))
    step = np.float32((high - low) / np.float32(255))
    zero = np.rint(-low / step)
    q = np.clip(np.rint(x / step) + zero, 0, 255) - zero
    centred = w.astype(np.float64) - (128 if w.dtype == np.uint8 else 0)
    return np.asarray(q.astype(np.float64) @ centred * (float(step) * scale))


def best_seconds(calls: list[Callable[[], object]], operations: int) -> list[float]:
    """Processor time of each call; rounds of all calls follow each other."""
    count = max(1, 10_000_000 // operations)
    best = [math.inf] * len(calls)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        for i, call in enumerate(calls):
            start = time.thread_time()
            for _ in range(count):
                call()
            best[i] = min(best[i], (time.thread_time() - start) / count)
    return best


def sessions(model: bytes) -> tuple[Any, Any]:
    """Of stock and of ours, of a file, as quantize_dynamic writes it."""
    options, ours_options = onnxruntime.SessionOptions(), SessionOptions()
    options.intra_op_num_threads = ours_options.intra_op_num_threads = 1
    with tempfile.NamedTemporaryFile(suffix=".onnx") as file:
        file.write(model)
        file.flush()
        stock = onnxruntime.InferenceSession(file.name, options, providers=["CPUExecutionProvider"])
        return stock, InferenceSession(file.name, ours_options)


def measure(rows: int, inner: int, columns: int, unsigned: bool) -> list[float]:
    """Prints a row; returns ours over stock's speed."""
    w, scale = quantized_weights(inner, columns, unsigned)
    stock, ours = sessions(layer(inner, w, scale))
    x = np.random.default_rng(1).standard_normal((rows, inner)).astype(np.float32)
    calls: list[Callable[[], object]] = [
        lambda: stock.run(None, {"x": x}),
        lambda: ours.run(None, {"x": x}),
    ]
    if not unsigned:
        left = torch.from_numpy(np.random.default_rng(2).integers(0, 127, (rows, inner), np.int8))
        right = torch.from_numpy(w)
        calls.append(lambda: torch._int_mm(left, right))
    wanted = exact(x, w, scale)
    errors = [
        float(abs(session.run(None, {"x": x})[0] - wanted).max() / abs(wanted).max())
        for session in (stock, ours)
    ]
    operations = rows * inner * columns
    rates = [2e-9 * operations / seconds for seconds in best_seconds(calls, operations)]
    torch_rate = f"{rates[2]:8.0f}" if len(rates) > 2 else f"{'-':>8}"
    print(
        f"{rows:4} x {inner:4} x {columns:4}  {'QUInt8' if unsigned else 'QInt8':7}"
        f"{rates[0]:7.0f} {rates[1]:7.0f} {torch_rate} {rates[1] / rates[0]:8.2f}"
        f"   {errors[0]:8.1e} {errors[1]:8.1e}",
        flush=True,
    )
    return rates


def main() -> int:
    torch.set_num_threads(1)
    print(f"{'GOP/s':28}{'stock':>7} {'ours':>7} {'_int_mm':>8} {'ratio':>8}   error of both")
    for unsigned in (False, True):
        ratios = []
        for product in PRODUCTS:
            rates = measure(*product, unsigned)
            ratios.append(rates[1] / rates[0])
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        print(f"geometric mean of ours / stock, {'QUInt8' if unsigned else 'QInt8'}: {mean:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
