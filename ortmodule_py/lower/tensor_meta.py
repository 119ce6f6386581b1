"""Tensor metadata and sizes in the types of the graph builder."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ortmodule_py.base.changing_numbers import changes
from ortmodule_py.base.errors import CannotLower
from ortmodule_py.lower.number_writer import ArgumentTypes, size_of
from ortmodule_py.lower.sizes.symbolic import dim_text


def dtype_name(dtype: torch.dtype) -> str:
    """ "float32" for torch.float32."""
    return str(dtype).removeprefix("torch.")


def encode_int(value: Any, types: ArgumentTypes | None) -> Any:
    """An int, or a Dim for a symbolic int (without `types`, its text)."""
    if not isinstance(value, torch.SymInt):
        return int(value)
    expr = size_of(value) if changes(value) else value.node.expr
    if expr.is_Integer:
        return int(expr)
    text = dim_text(expr)
    return types.Dim(text) if types is not None else text


def first_sizes(inputs: Iterable[Any]) -> dict[str, int]:
    """The values that symbols have in the first call, of those that are sizes of inputs or inputs."""
    known: dict[str, int] = {}
    for value in inputs:
        for size in value.shape if isinstance(value, Tensor) else (value,):
            if isinstance(size, torch.SymInt) and size.node.expr.is_symbol and size.node.has_hint():
                known[size.node.expr.name] = int(size.node.hint)
    return known


def tensor_meta(value: Tensor, types: ArgumentTypes | None) -> dict[str, Any]:
    """dtype, device, sizes and strides for the builder; without `types`, as plain values.

    Raises:
        CannotLower: a quantized or sparse tensor.
    """
    if value.is_quantized or value.layout is not torch.strided:
        raise CannotLower(f"a tensor of {value.dtype}, {value.layout}")
    return {
        "dtype": dtype_name(value.dtype),
        "device": str(value.device),
        "sizes": [encode_int(size, types) for size in value.shape],
        "strides": [encode_int(stride, types) for stride in value.stride()],
    }
