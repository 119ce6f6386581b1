"""A decoder as generators of language models make it: products by weights of 4 bits and shared keys."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

HEADS, KEY_HEADS, BLOCK, MOST_TOKENS, CONTRIB = 16, 4, 32, 2048, "com.microsoft"


class _Builder:
    def __init__(self, width: int, layers: int, words: int) -> None:
        self.width, self.layers, self.words = width, layers, words
        self.size = width // HEADS
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.random = np.random.default_rng(0)

    def weight(self, name: str, values: NDArray[np.generic]) -> str:
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def node(
        self, op: str, inputs: list[str], output: str, domain: str = "", **attrs: object
    ) -> str:
        self.nodes.append(helper.make_node(op, inputs, [output], domain=domain, **attrs))
        return output

    def product(self, x: str, inner: int, columns: int, name: str) -> str:
        blocks = inner // BLOCK
        packed = self.random.integers(0, 256, (columns, blocks, BLOCK // 2), dtype=np.uint8)
        scales = (self.random.random(columns * blocks) * 0.3 / inner**0.5).astype(np.float32)
        weights = [self.weight(f"{name}_weight", packed), self.weight(f"{name}_scales", scales)]
        attrs = {"K": inner, "N": columns, "bits": 4, "block_size": BLOCK, "accuracy_level": 4}
        return self.node("MatMulNBits", [x, *weights], name, CONTRIB, **attrs)

    def norm(self, x: str, name: str) -> str:
        attrs = {"epsilon": 1e-6, "axis": -1}
        return self.node("SimplifiedLayerNormalization", [x, "norm"], name, **attrs)

    def attention(self, x: str, layer: str, past: tuple[str, str], present: tuple[str, str]) -> str:
        keys_width = KEY_HEADS * self.size
        q = self.product(x, self.width, self.width, f"{layer}_q")
        k, v = (self.product(x, self.width, keys_width, f"{layer}_{name}") for name in "kv")
        self.nodes.append(
            helper.make_node(
                "GroupQueryAttention",
                [q, k, v, *past, "last", "total", "cosines", "sines"],
                [f"{layer}_attended", *present],
                domain=CONTRIB,
                num_heads=HEADS,
                kv_num_heads=KEY_HEADS,
                do_rotary=1,
            )
        )
        return self.product(f"{layer}_attended", self.width, self.width, f"{layer}_out")

    def layer(self, x: str, i: int) -> str:
        past, present = ((f"{when}_{2 * i}", f"{when}_{2 * i + 1}") for when in ("past", "present"))
        name, wide = f"layer_{i}", 11 * self.width // 4
        y = self.attention(self.norm(x, f"{name}_norm"), name, past, present)
        x = self.node("Add", [x, y], f"{name}_middle")
        y = self.norm(x, f"{name}_second_norm")
        gate, up = (self.product(y, self.width, wide, f"{name}_{part}") for part in ("gate", "up"))
        share = self.node("Sigmoid", [gate], f"{name}_share")
        gated = self.node("Mul", [gate, share], f"{name}_gated")
        y = self.node("Mul", [gated, up], f"{name}_wide")
        return self.node("Add", [x, self.product(y, wide, self.width, f"{name}_down")], name)

    def places(self) -> None:
        """The tables of rotations, and how many tokens there are."""
        rates = 1e4 ** (-np.arange(0, self.size, 2) / self.size)
        angles = np.arange(MOST_TOKENS)[:, None] * rates
        self.weight("cosines", np.cos(angles).astype(np.float32))
        self.weight("sines", np.sin(angles).astype(np.float32))
        self.weight("one", np.array(1))
        self.node("Shape", ["past_0"], "before", start=2, end=3)
        self.node("Shape", ["ids"], "length", start=1, end=2)
        self.node("Add", ["before", "length"], "end")
        self.node("Sub", ["end", "one"], "last_place")
        self.node("Cast", ["last_place"], "last", to=TensorProto.INT32)
        self.node("Squeeze", ["end"], "end_number")
        self.node("Cast", ["end_number"], "total", to=TensorProto.INT32)

    def build(self) -> onnx.ModelProto:
        self.weight("norm", np.ones(self.width, np.float32))
        table = self.random.standard_normal((self.words, self.width)).astype(np.float32)
        x = self.node("Gather", [self.weight("words", table), "ids"], "embedded")
        self.places()
        for i in range(self.layers):
            x = self.layer(x, i)
        self.product(self.norm(x, "last_norm"), self.width, self.words, "logits")

        def caches(name: str, length: str) -> list[onnx.ValueInfoProto]:
            sizes = [1, KEY_HEADS, length, self.size]
            names = [f"{name}_{i}" for i in range(2 * self.layers)]
            return [helper.make_tensor_value_info(n, TensorProto.FLOAT, sizes) for n in names]

        ids = helper.make_tensor_value_info("ids", TensorProto.INT64, [1, "length"])
        sizes = [1, "length", self.words]
        logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, sizes)
        inputs, outputs = [ids, *caches("past", "before")], [logits, *caches("present", "after")]
        graph = helper.make_graph(self.nodes, "decoder", inputs, outputs, self.weights)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid(CONTRIB, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def save_decoder(width: int, layers: int, words: int, path: Path) -> None:
    """Write a decoder with random weights: `ids` [1, length] and keys and values of the tokens before."""
    onnx.save(_Builder(width, layers, words).build(), path)
