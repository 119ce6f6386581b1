"""`python -m benchmarks.pools [part of a name]`: one pool of an image at a time, on one thread.

A session of ours with a model of one `MaxPool` or `AveragePool` beside torch's pool (row-major and
channels-last) and stock onnxruntime, in turn, the least wall time of several calls each. Every result is
compared with torch's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper
from rich.console import Console
from rich.table import Table

from benchmarks.convolutions import least_times
from ortmodule_py.inference import InferenceSession, SessionOptions


@dataclass(frozen=True)
class Pool:
    """A pool of one square image."""

    name: str
    op: str
    channels: int
    side: int
    window: int
    stride: int
    pad: int = 0


POOLS = [
    Pool("ResNet's stem", "MaxPool", 64, 112, 3, 2, 1),
    Pool("SqueezeNet's stem", "MaxPool", 64, 111, 3, 2),
    Pool("VGG, first", "MaxPool", 64, 224, 2, 2),
    Pool("VGG, last", "MaxPool", 512, 14, 2, 2),
    Pool("Inception", "MaxPool", 192, 28, 3, 1, 1),
    Pool("spatial pyramid", "MaxPool", 256, 20, 5, 1, 2),
    Pool("DenseNet's transition", "AveragePool", 256, 28, 2, 2),
    Pool("Inception, average", "AveragePool", 192, 35, 3, 1, 1),
]


def model_of(pool: Pool) -> bytes:
    node = helper.make_node(
        pool.op,
        ["x"],
        ["y"],
        kernel_shape=[pool.window] * 2,
        strides=[pool.stride] * 2,
        pads=[pool.pad] * 4,
    )
    dims = [1, pool.channels, pool.side, pool.side]
    graph = helper.make_graph(
        [node],
        "pool",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    opsets = [helper.make_opsetid("", 17)]
    return onnx.ModelProto.SerializeToString(
        helper.make_model(graph, opset_imports=opsets, ir_version=8)
    )


def pooled(pool: Pool, x: torch.Tensor) -> torch.Tensor:
    if pool.op == "MaxPool":
        return torch.nn.functional.max_pool2d(x, pool.window, pool.stride, pool.pad)
    return torch.nn.functional.avg_pool2d(
        x, pool.window, pool.stride, pool.pad, count_include_pad=False
    )


def row_of(pool: Pool) -> list[str]:
    random = np.random.default_rng(1)
    x = random.standard_normal((1, pool.channels, pool.side, pool.side)).astype("float32")
    model = model_of(pool)
    ours_options = SessionOptions()
    ours_options.intra_op_num_threads = 1
    ours = InferenceSession(model, ours_options)
    stock_options = onnxruntime.SessionOptions()
    stock_options.intra_op_num_threads = 1
    stock = onnxruntime.InferenceSession(model, stock_options, providers=["CPUExecutionProvider"])
    rows = torch.from_numpy(x)
    last = rows.contiguous(memory_format=torch.channels_last)
    calls: dict[str, Callable[[], Any]] = {
        "ours": lambda: ours.run(None, {"x": x})[0],
        "torch": lambda: pooled(pool, rows),
        "torch, channels-last": lambda: pooled(pool, last),
        "stock": lambda: stock.run(None, {"x": x})[0],
    }
    torch.testing.assert_close(torch.from_numpy(calls["ours"]()), pooled(pool, rows))
    least = least_times(calls)
    others = [f"{seconds / least['ours']:.2f}" for name, seconds in least.items() if name != "ours"]
    return [pool.name, pool.op, f"{1e3 * least['ours']:.3f}", *others]


def main() -> None:
    part = sys.argv[1] if len(sys.argv) > 1 else ""
    torch.set_num_threads(1)
    table = Table("pool", "operator", "ms", "torch / ours", "channels-last / ours", "stock / ours")
    with torch.inference_mode():
        for pool in POOLS:
            if part in pool.name:
                table.add_row(*row_of(pool))
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
