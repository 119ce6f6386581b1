"""Facts about the flat inputs of Dynamo's graph: names, kinds, and which of them change."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._dynamo.source import RandomValueSource


def is_fixed(fake: Any) -> bool:
    """Whether this is a tensor with constant sizes and strides."""
    if not isinstance(fake, Tensor):
        return False
    return not any(isinstance(n, torch.SymInt) for n in (*fake.shape, *fake.stride()))


def name_and_kind(node: fx.Node, real: Any) -> tuple[str, str]:
    """`L['self']._modules['fc']._parameters['weight']` is the parameter "fc.weight"."""
    source = _source(node)
    if source is None:
        return node.name, "parameter" if isinstance(real, torch.nn.Parameter) else "tensor"
    text = source.name() if callable(source.name) else source.name
    if text.startswith("G['__"):  # computed from other inputs (`dynamo/content_sizes`)
        return node.name, "tensor"
    keys = re.findall(r"\._(modules|parameters|buffers)\['([^']+)'\]", text)
    kind = "tensor"
    if isinstance(real, torch.nn.Parameter) or (keys and keys[-1][0] == "parameters"):
        kind = "parameter"
    elif keys and keys[-1][0] == "buffers":
        kind = "buffer"
    if keys and keys[-1][0] != "modules":
        return ".".join(key for _, key in keys), kind
    plain = re.fullmatch(r"L(?:\['kwargs'\])?\['([^']+)'\](.*)", text)
    return (plain.group(1) + plain.group(2) if plain else text), kind


def _source(node: fx.Node) -> Any:
    """Dynamo's source of this input, if it has one."""
    grapharg = node.meta.get("grapharg")
    return getattr(grapharg, "source", None) or getattr(node, "_dynamo_source", None)


def drawn_inputs(gm: fx.GraphModule, fakes: Sequence[Any]) -> dict[int, torch.dtype]:
    """Python's random numbers with their traced dtype: Dynamo traces float32, but passes float64."""
    placeholders = gm.graph.find_nodes(op="placeholder")
    return {
        i: fake.dtype
        for i, (node, fake) in enumerate(zip(placeholders, fakes, strict=True))
        if isinstance(fake, Tensor) and isinstance(_source(node), RandomValueSource)
    }
