"""Text generated token by token beside stock onnxruntime, one thread.

    python -m benchmarks.generation

A decoder of which each run takes one token and the keys and values of those before, and returns
them longer by one: each run has sizes of its own, so the time of planning is part of it. Each row
is a decoder: bits of its weights, milliseconds of processor time per token, and the largest
difference of the logits, as a share of the largest one. Those of 4 bits share keys (GroupQueryAttention).
"""

from __future__ import annotations

import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from torch import nn

from benchmarks.few_bits_decoder import save_decoder
from ortmodule_py.inference import InferenceSession, SessionOptions

HEADS, WORDS, PROMPT, TOKENS = 8, 1000, 64, 400
DECODERS = [(256, 6, 32), (512, 8, 32), (768, 12, 32), (1024, 6, 4)]  # width, layers, bits


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any, keys: Any, values: Any, mask: Any) -> tuple[Any, Any, Any]:
        rows, length, width = x.shape
        qkv = self.qkv(self.norms[0](x)).view(rows, length, 3, HEADS, width // HEADS)
        q, key, value = qkv.permute(2, 0, 3, 1, 4)
        keys, values = torch.cat([keys, key], 2), torch.cat([values, value], 2)
        scores = q @ keys.transpose(2, 3) / (width // HEADS) ** 0.5 + mask
        y = (torch.softmax(scores, -1) @ values).transpose(1, 2).reshape(rows, length, width)
        x = x + self.out(y)
        return x + self.narrow(nn.functional.gelu(self.widen(self.norms[1](x)))), keys, values


class Decoder(nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(2048, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, WORDS, bias=False)

    def forward(self, ids: Any, *past: Any) -> tuple[Any, ...]:
        before, length = past[0].shape[2], ids.shape[1]
        place = torch.arange(before, before + length)
        seen = torch.arange(before + length)[None] <= place[:, None]
        mask = torch.where(seen, 0.0, -1e9)[None, None]
        x = self.words(ids) + self.places(place)
        present: list[Any] = []
        for i, layer in enumerate(self.layers):
            x, keys, values = layer(x, past[2 * i], past[2 * i + 1], mask)
            present += keys, values
        return (self.head(self.norm(x)), *present)


def export(width: int, layers: int, path: Path) -> None:
    torch.manual_seed(0)
    past = [torch.randn(1, HEADS, 3, width // HEADS) for _ in range(2 * layers)]
    names = [f"past_{i}" for i in range(2 * layers)]
    present = [f"present_{i}" for i in range(2 * layers)]
    axes = {name: {2: "before"} for name in names} | {name: {2: "after"} for name in present}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Decoder(width, layers).eval(),
            (torch.zeros(1, 2, dtype=torch.int64), *past),
            path,
            input_names=["ids", *names],
            output_names=["logits", *present],
            dynamic_axes={"ids": {1: "length"}, **axes},
            dynamo=False,
        )


class Generation:
    """The runs of one session, from a prompt on."""

    def __init__(self, session: Any) -> None:
        self.session, self.times = session, []
        self.names = [i.name for i in session.get_inputs()][1:]
        _, heads, _, size = session.get_inputs()[1].shape
        empty = np.zeros((1, heads, 0, size), np.float32)
        self.feeds = dict.fromkeys(self.names, empty)
        self.feeds["ids"] = np.arange(PROMPT)[None]

    def step(self) -> Any:
        start = time.process_time()
        logits, *present = self.session.run(None, self.feeds)
        self.times.append(time.process_time() - start)
        self.feeds = dict(zip(self.names, present, strict=True))
        self.feeds["ids"] = logits[:, -1:].argmax(-1)
        return logits


def main() -> None:
    ours, theirs = SessionOptions(), onnxruntime.SessionOptions()
    ours.intra_op_num_threads = theirs.intra_op_num_threads = 1
    print(f"{'width layers bits':>18} {'ours':>8} {'stock':>8} {'ratio':>6} {'difference':>10}")
    for width, layers, bits in DECODERS:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "decoder.onnx"
            if bits == 4:
                save_decoder(width, layers, WORDS, path)
            else:
                export(width, layers, path)
            cpu = ["CPUExecutionProvider"]
            stock = onnxruntime.InferenceSession(path, theirs, providers=cpu)
            runs = [Generation(InferenceSession(path, ours)), Generation(stock)]
            difference = 0.0
            for _ in range(TOKENS):
                first, second = (run.step() for run in runs)
                share = np.abs(first - second).max() / np.abs(second).max()
                difference = max(difference, float(share))
        milliseconds = [np.median(run.times[1:]) * 1e3 for run in runs]
        print(
            f"{width:6} {layers:6} {bits:4} {milliseconds[0]:8.2f} {milliseconds[1]:8.2f}"
            f" {milliseconds[0] / milliseconds[1]:6.2f} {difference:10.1e}"
        )


if __name__ == "__main__":
    main()
