"""Packed batches of sequences: torch's functions as nodes of Dynamo's graph that know their sizes.

`dynamo/patches/packed_sequences` reads the sizes from the lengths before the graph runs. A node is run in
three ways: on fake tensors for sizes, types and `requires_grad`; in the trace of a piece, where it becomes
operators of this package; and by eager PyTorch, on real tensors, where the piece is not compiled. Dropout
between layers is drawn for the packed rows, as eager PyTorch does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import _VF, Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from ortmodule_py.trace.decompositions import recurrent_layers

_LIBRARY = torch.library.Library("ortmodule_py", "FRAGMENT")
_LIBRARY.define(
    "pack_sequence(Tensor input, Tensor batch_sizes, SymInt rows, bool batch_first) -> Tensor"
)
_LIBRARY.define(
    "pad_sequence(Tensor data, Tensor batch_sizes, SymInt batch, SymInt steps, bool batch_first, "
    "float padding_value) -> Tensor"
)


# Real tensors come here where a piece has no kernel for the operator: on a device, or in a traced gradient.
def _packed_rows(input: Tensor, batch_sizes: Tensor, rows: int, batch_first: bool) -> Tensor:
    if not _is_real(input):
        return input.new_empty(rows, *input.shape[2:])
    by_step = input.transpose(0, 1) if batch_first else input
    return torch.cat([by_step[t, :size] for t, size in enumerate(batch_sizes.tolist())])


def _padded_rows(
    data: Tensor,
    batch_sizes: Tensor,
    batch: int,
    steps: int,
    batch_first: bool,
    padding_value: float,
) -> Tensor:
    if not _is_real(data):
        return data.new_empty(*((batch, steps) if batch_first else (steps, batch)), *data.shape[1:])
    padded = data.new_full((steps, batch, *data.shape[1:]), padding_value)
    for t, part in enumerate(data.split(batch_sizes.tolist())):
        padded[t, : len(part)] = part
    return padded.transpose(0, 1).contiguous() if batch_first else padded


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])
    ctx.shape, ctx.batch_first = inputs[0].shape, inputs[-1 if len(inputs) == 4 else -2]


def _pack_gradient(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    (batch_sizes,) = ctx.saved_tensors
    first, second = ctx.shape[:2]
    sizes = (first, second) if ctx.batch_first else (second, first)
    pad_sequence = torch.ops.ortmodule_py.pad_sequence
    return pad_sequence(gradient, batch_sizes, *sizes, ctx.batch_first, 0.0), None, None, None


def _pad_gradient(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    (batch_sizes,) = ctx.saved_tensors
    pack_sequence = torch.ops.ortmodule_py.pack_sequence
    packed = pack_sequence(gradient, batch_sizes, ctx.shape[0], ctx.batch_first)
    return packed, None, None, None, None, None


for _name, _kernel, _gradient in (
    ("pack_sequence", _packed_rows, _pack_gradient),
    ("pad_sequence", _padded_rows, _pad_gradient),
):
    _LIBRARY.impl(_name, _kernel, "CompositeExplicitAutograd")
    torch.library.register_autograd(
        f"ortmodule_py::{_name}", _gradient, setup_context=_save, lib=_LIBRARY
    )


def pack(
    input: Tensor, lengths: Tensor, rows: int, steps: int, batch_first: bool
) -> tuple[Tensor, Tensor]:
    """Data and batch sizes of a packed batch, as torch's `_pack_padded_sequence`.

    `lengths` are in descending order; `rows` is their sum and `steps` the first of them.
    """
    if _is_real(input):
        data, batch_sizes = _VF._pack_padded_sequence(input, lengths, batch_first)
        return data, batch_sizes
    batch_sizes = (lengths > torch.arange(steps).unsqueeze(1)).sum(1)
    if get_proxy_mode() is None:
        return _new_rows(input.flatten(0, 1), rows), batch_sizes
    return torch.ops.ortmodule_py.pack_sequence(input, batch_sizes, rows, batch_first), batch_sizes


def pad(
    data: Tensor,
    batch_sizes: Tensor,
    batch: int,
    steps: int,
    batch_first: bool,
    padding_value: float,
) -> tuple[Tensor, Tensor]:
    """A padded batch of `steps` steps and its lengths, as torch's `_pad_packed_sequence`.

    `batch` is the first of the batch sizes.
    """
    if _is_real(data):
        padded, lengths = _VF._pad_packed_sequence(
            data, batch_sizes, batch_first, padding_value, steps
        )
        return padded, lengths
    lengths = (batch_sizes > torch.arange(batch).unsqueeze(1)).sum(1)
    if get_proxy_mode() is None:
        padded = _new_rows(data, steps * batch).unflatten(0, (steps, batch))
        return padded.transpose(0, 1) if batch_first else padded, lengths
    sizes = (batch, steps, batch_first, padding_value)
    return torch.ops.ortmodule_py.pad_sequence(data, batch_sizes, *sizes), lengths


def layers(
    kind: str,
    data: Tensor,
    batch_sizes: Tensor,
    states: Sequence[Tensor],
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
) -> tuple[Tensor, ...]:
    """Stacked recurrent layers on a packed batch: data and last states, as `torch.lstm` and its like."""
    rest = (has_biases, num_layers, dropout, train, bidirectional)
    hx = list(states) if kind == "lstm" else states[0]
    if _is_real(data):
        return tuple(getattr(_VF, kind)(data, batch_sizes, hx, list(params), *rest))
    if get_proxy_mode() is not None:
        return recurrent_layers.on_packed(kind, data, batch_sizes, hx, params, *rest)
    one = [state.narrow(1, 0, 1) for state in states]
    step = getattr(torch, kind)(
        data.narrow(0, 0, 1).unsqueeze(0),
        one if kind == "lstm" else one[0],
        list(params),
        *rest,
        False,
    )
    finals = (
        part.expand(-1, state.shape[1], -1).clone(memory_format=torch.contiguous_format)
        for part, state in zip(step[1:], states, strict=True)
    )
    return _new_rows(step[0].squeeze(0), data.shape[0]), *finals


def _is_real(value: Any) -> bool:
    return get_proxy_mode() is None and not isinstance(value, FakeTensor)


def _new_rows(like: Tensor, count: int) -> Tensor:
    """`count` rows as `like` has them, in new memory; requires a gradient if `like` does."""
    rows = like.narrow(0, 0, 1).expand(count, *like.shape[1:])
    return rows.clone(memory_format=torch.contiguous_format)
