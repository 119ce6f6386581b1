"""Products with few columns, as of linear models, beside stock onnxruntime, one thread.

    python -m benchmarks.narrow_products

Each row is a Gemm with a constant weight: microseconds of a run, the least of interleaved rounds.
"""

from __future__ import annotations

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from benchmarks.few_bits import microseconds
from ortmodule_py.inference import InferenceSession, SessionOptions

# rows, inner, columns
PRODUCTS = [
    (1000, 10, 1),
    (1000, 100, 3),
    (1000, 768, 2),
    (50000, 4, 1),
    (50000, 4, 3),
    (50000, 20, 2),
    (50000, 30, 10),
    (50000, 100, 1),
    (50000, 64, 16),
    (20000, 300, 32),
]
ROUNDS = 60


def layer(inner: int, columns: int) -> bytes:
    random = np.random.default_rng(0)
    weights = {
        "w": random.standard_normal((inner, columns)).astype(np.float32),
        "b": random.standard_normal(columns).astype(np.float32),
    }
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w", "b"], ["y"])],
        "layer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", inner])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", columns])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return bytes(model.SerializeToString())


def main() -> None:
    ours, theirs = SessionOptions(), onnxruntime.SessionOptions()
    ours.intra_op_num_threads = theirs.intra_op_num_threads = 1
    print(f"{'product':>16} {'ours':>8} {'stock':>8} {'ratio':>6}")
    for rows, inner, columns in PRODUCTS:
        model = layer(inner, columns)
        x = np.random.default_rng(1).standard_normal((rows, inner)).astype(np.float32)
        sessions = [
            InferenceSession(model, ours),
            onnxruntime.InferenceSession(model, theirs, providers=["CPUExecutionProvider"]),
        ]
        times = [[microseconds(session, x) for session in sessions] for _ in range(ROUNDS)]
        mine, stock = (min(column) for column in zip(*times, strict=True))
        name = f"{rows} x {inner} x {columns}"
        print(f"{name:>16} {mine:8.1f} {stock:8.1f} {mine / stock:6.2f}")


if __name__ == "__main__":
    main()
