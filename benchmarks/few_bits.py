"""MatMulNBits beside stock onnxruntime, one thread: weights of 2, 4 and 8 bits in blocks.

    python -m benchmarks.few_bits

Each row is one product: microseconds of a run, the least of interleaved rounds, at the default
accuracy level and at 4, where x is rounded to 8 bits.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from ortmodule_py.inference import InferenceSession, SessionOptions

# bits, block size, inner, columns
WEIGHTS = [
    (4, 32, 1024, 1024),
    (4, 32, 2048, 4096),
    (4, 128, 4096, 1024),
    (8, 16, 1024, 1024),
    (8, 32, 1024, 1024),
    (8, 32, 2048, 4096),
    (2, 64, 1024, 1024),
]
ROWS = (1, 4, 8, 16, 128)
SECONDS = 1.0  # for each row


def product(bits: int, block: int, inner: int, columns: int, level: int) -> bytes:
    random = np.random.default_rng(0)
    blocks = -(-inner // block)
    weights = {
        "w": random.integers(0, 256, (columns, blocks, block * bits // 8), dtype=np.uint8),
        "s": random.random((columns, blocks), dtype=np.float32) * np.float32(0.02),
    }
    attrs = {"K": inner, "N": columns, "bits": bits, "block_size": block, "accuracy_level": level}
    node = helper.make_node("MatMulNBits", ["x", *weights], ["y"], domain="com.microsoft", **attrs)
    graph = helper.make_graph(
        [node],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", inner])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", columns])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return bytes(model.SerializeToString())


def microseconds(session: Any, x: np.ndarray[Any, Any]) -> float:
    start = time.perf_counter()
    session.run(None, {"x": x})
    return (time.perf_counter() - start) * 1e6


def main() -> None:
    ours, theirs = SessionOptions(), onnxruntime.SessionOptions()
    ours.intra_op_num_threads = theirs.intra_op_num_threads = 1
    cpu = ["CPUExecutionProvider"]
    print(f"{'bits block inner columns rows':>29}   default: ours     stock ratio   level 4:")
    for bits, block, inner, columns in WEIGHTS:
        models = [product(bits, block, inner, columns, level) for level in (0, 4)]
        sessions = [
            session
            for model in models
            for session in (
                InferenceSession(model, ours),
                onnxruntime.InferenceSession(model, theirs, providers=cpu),
            )
        ]
        for rows in ROWS:
            x = np.random.default_rng(1).standard_normal((rows, inner)).astype(np.float32)
            least = [float("inf")] * len(sessions)
            end = time.perf_counter() + SECONDS
            while time.perf_counter() < end:
                for i, session in enumerate(sessions):
                    least[i] = min(least[i], microseconds(session, x))
            name = f"{bits:4} {block:5} {inner:5} {columns:7} {rows:4}"
            times = " ".join(
                f"{least[i]:13.1f} {least[i + 1]:9.1f} {least[i] / least[i + 1]:5.2f}"
                for i in (0, 2)
            )
            print(f"{name:>29} {times}")


if __name__ == "__main__":
    main()
