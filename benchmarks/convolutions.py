"""`python -m benchmarks.convolutions [part of a name] [--threads 1,2]`: one convolution at a time.

A session of ours with a model of one `Conv` beside torch's convolution (row-major and channels-last) and
stock onnxruntime, in turn, the least wall time of several calls each; GFLOP/s, and the time of the fastest
torch and of stock as multiples of ours. Every result is compared with torch's in float64.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper
from rich.console import Console
from rich.table import Table

from ortmodule_py.inference import InferenceSession, SessionOptions

SECONDS = 0.6  # for one row, all runners together
LEAST_CALLS = 10


@dataclass(frozen=True)
class Shape:
    """A convolution; sizes are those of the image and the window in each dimension."""

    name: str
    channels: int
    outputs: int
    image: tuple[int, ...]
    window: tuple[int, ...]
    stride: int = 1
    group: int = 1
    batch: int = 1

    @property
    def pads(self) -> tuple[int, ...]:
        return tuple(size // 2 for size in self.window)


def square(name: str, channels: int, outputs: int, side: int, window: int, **more: Any) -> Shape:
    return Shape(name, channels, outputs, (side, side), (window, window), **more)


SHAPES = [
    square("3x3, ResNet stage 1", 64, 64, 56, 3),
    square("3x3, ResNet stage 3", 256, 256, 14, 3),
    square("3x3, ResNet stage 4", 512, 512, 7, 3),
    square("1x1, ResNet stage 1", 256, 64, 56, 1),
    square("1x1, expanding", 64, 256, 56, 1),
    square("1x1, strided", 256, 512, 56, 1, stride=2),
    square("7x7, stem", 3, 64, 224, 7, stride=2),
    square("3x3, strided stem", 3, 16, 224, 3, stride=2),
    square("3x3, strided", 128, 256, 56, 3, stride=2),
    square("3x3, one channel", 1, 16, 320, 3),
    square("3x3, to one channel", 24, 1, 320, 3),
    square("3x3, detector", 96, 24, 80, 3),
    square("3x3, 32 groups", 128, 128, 56, 3, group=32),
    square("depthwise 3x3", 32, 32, 112, 3, group=32),
    square("depthwise 3x3, strided", 64, 64, 112, 3, stride=2, group=64),
    square("depthwise 5x5", 120, 120, 40, 5, group=120),
    square("depthwise 5x5, strided", 72, 72, 56, 5, stride=2, group=72),
    square("depthwise 3x3, small", 960, 960, 7, 3, group=960),
    square("3x3, batch 8", 64, 64, 56, 3, batch=8),
    square("depthwise 3x3, batch 8", 32, 32, 112, 3, group=32, batch=8),
    Shape("speech, wav2vec", 512, 512, (1599,), (3,), stride=2),
    Shape("speech, voice detector", 129, 128, (66,), (3,)),
]


def model_of(shape: Shape, w: np.ndarray) -> bytes:
    x_dims = [shape.batch, shape.channels, *shape.image]
    node = helper.make_node(
        "Conv",
        ["x", "w"],
        ["y"],
        strides=[shape.stride] * len(shape.image),
        pads=list(shape.pads * 2),
        group=shape.group,
    )
    graph = helper.make_graph(
        [node],
        "convolution",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x_dims)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(w, "w")],
    )
    opsets = [helper.make_opsetid("", 17)]
    return onnx.ModelProto.SerializeToString(
        helper.make_model(graph, opset_imports=opsets, ir_version=8)
    )


def runners(
    shape: Shape, threads: int
) -> tuple[dict[str, Callable[[], Any]], torch.Tensor, torch.Tensor]:
    """The calls to measure by name, and the operands."""
    random = np.random.default_rng(1)
    x = random.standard_normal((shape.batch, shape.channels, *shape.image)).astype("float32")
    w = random.standard_normal(
        (shape.outputs, shape.channels // shape.group, *shape.window)
    ).astype("float32")
    model = model_of(shape, w)
    ours_options = SessionOptions()
    ours_options.intra_op_num_threads = threads
    ours = InferenceSession(model, ours_options)
    stock_options = onnxruntime.SessionOptions()
    stock_options.intra_op_num_threads = threads
    stock = onnxruntime.InferenceSession(model, stock_options, providers=["CPUExecutionProvider"])
    tx, tw = torch.from_numpy(x), torch.from_numpy(w)
    calls: dict[str, Callable[[], Any]] = {
        "ours": lambda: ours.run(None, {"x": x})[0],
        "torch": lambda: convolve(shape, tx, tw),
        "stock": lambda: stock.run(None, {"x": x})[0],
    }
    if len(shape.image) == 2:
        last_x = tx.contiguous(memory_format=torch.channels_last)
        last_w = tw.contiguous(memory_format=torch.channels_last)
        calls["torch, channels-last"] = lambda: convolve(shape, last_x, last_w)
    return calls, tx, tw


def convolve(shape: Shape, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    convolution = torch.nn.functional.conv1d if x.ndim == 3 else torch.nn.functional.conv2d
    return convolution(x, w, None, shape.stride, shape.pads, 1, shape.group)


def least_times(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Seconds of the fastest call of each, called in turn."""
    least = dict.fromkeys(calls, float("inf"))
    end = time.perf_counter() + SECONDS
    done = 0
    while done < LEAST_CALLS or time.perf_counter() < end:
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            least[name] = min(least[name], time.perf_counter() - start)
        done += 1
    return least


def row_of(shape: Shape, threads: int) -> list[str]:
    calls, x, w = runners(shape, threads)
    wanted = convolve(shape, x.double(), w.double())
    difference = (torch.from_numpy(calls["ours"]()).double() - wanted).abs().max()
    least = least_times(calls)
    flops = 2.0 * wanted.numel() * w[0].numel()
    rates = {name: flops / seconds / 1e9 for name, seconds in least.items()}
    fastest_torch = min(seconds for name, seconds in least.items() if name.startswith("torch"))
    names = ("ours", "torch", "torch, channels-last", "stock")
    return [
        shape.name,
        f"{1e3 * least['ours']:.3f}",
        *(f"{rates[name]:.1f}" if name in rates else "" for name in names),
        f"{fastest_torch / least['ours']:.2f}",
        f"{least['stock'] / least['ours']:.2f}",
        f"{float(difference / wanted.abs().max()):.0e}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", nargs="?", default="", help="only shapes whose name contains this")
    parser.add_argument("--threads", default="1,2")
    arguments = parser.parse_args()
    for threads in map(int, arguments.threads.split(",")):
        torch.set_num_threads(threads)
        table = Table(
            "convolution",
            "ms",
            "ours GFLOP/s",
            "torch",
            "channels-last",
            "stock",
            "torch / ours",
            "stock / ours",
            "error",
            title=f"{threads} thread{'s' if threads > 1 else ''}",
        )
        with torch.inference_mode():
            for shape in SHAPES:
                if arguments.part in shape.name:
                    table.add_row(*row_of(shape, threads))
        Console(width=130).print(table)


if __name__ == "__main__":
    main()
