"""Tensors and sizes as the graph builder takes them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ortmodule_py.base.changing_numbers import changes
from ortmodule_py.base.errors import CannotLower
from ortmodule_py.lower.builder import Words
from ortmodule_py.lower.number_writer import size_of
from ortmodule_py.lower.sizes.symbolic import dim_text


def dtype_name(dtype: torch.dtype) -> str:
    """ "float32" for torch.float32."""
    return str(dtype).removeprefix("torch.")


def encode_int(value: Any, words: Words | None) -> Any:
    """An int as it is, a symbolic int as a Dim (as its text where there are no words)."""
    if not isinstance(value, torch.SymInt):
        return int(value)
    expr = size_of(value) if changes(value) else value.node.expr
    if expr.is_Integer:
        return int(expr)
    text = dim_text(expr)
    return words.Dim(text) if words is not None else text


def tensor_meta(value: Tensor, words: Words | None) -> dict[str, Any]:
    """dtype, device, sizes and strides, as the builder takes them (as plain values where there are no words)."""
    if value.is_complex() or value.is_quantized or value.layout is not torch.strided:
        raise CannotLower(f"a tensor of {value.dtype}, {value.layout}")
    return {
        "dtype": dtype_name(value.dtype),
        "device": str(value.device),
        "sizes": [encode_int(size, words) for size in value.shape],
        "strides": [encode_int(stride, words) for stride in value.stride()],
    }
