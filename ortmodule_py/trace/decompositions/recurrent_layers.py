"""Runs stacked recurrent layers one by one, with dropout between them.

torch's Python kernels of `lstm`, `gru` and `rnn` (`_rnn_helper` in `torch/_decomp/decompositions.py`,
up to 2.13) never apply dropout, as their comparison of the layer's index with the number of layers is
reversed. The order here is that of ATen's `apply_layer_stack` (aten/src/ATen/native/RNN.cpp): time first,
dropout on the output of each layer but the last. Up to torch 2.11 the final states of an LSTM also have
an extra dimension (`one_layer_lstm` there).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

OPERATORS: tuple[OpOverload, ...] = (
    torch.ops.aten.lstm.input,
    torch.ops.aten.gru.input,
    torch.ops.aten.rnn_tanh.input,
    torch.ops.aten.rnn_relu.input,
)
"""The overloads for padded batches; packed sequences run in eager, as their batch sizes are data."""


def with_dropout(operator: OpOverload, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The operator's kernel with dropout between its layers, and final states shaped like the initial ones."""
    names = [argument.name for argument in operator._schema.arguments]

    def stacked(*args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        given = dict(zip(names, args, strict=False)) | kwargs
        if given["num_layers"] > 1 and given["train"] and given["dropout"] > 0:
            return _stack(kernel, given)
        value, *final = kernel(*args, **kwargs)
        return value, *map(torch.reshape, final, [state.shape for state in _states(given)])

    return stacked


def _states(given: dict[str, Any]) -> list[Tensor]:
    return [given["hx"]] if isinstance(given["hx"], Tensor) else list(given["hx"])


def _stack(kernel: Callable[..., Any], given: dict[str, Any]) -> tuple[Tensor, ...]:
    """Call the kernel once per layer; `given` has its arguments in the schema's order."""
    layers, batch_first = given["num_layers"], given["batch_first"]
    value, params, states = given["input"], given["params"], _states(given)
    rows, each = 2 if given["bidirectional"] else 1, len(params) // layers
    value = value.transpose(0, 1) if batch_first else value
    finals: list[list[Tensor]] = []
    for layer in range(layers):
        begin = [state.narrow(0, layer * rows, rows) for state in states]
        one = given | {
            "input": value,
            "hx": begin[0] if isinstance(given["hx"], Tensor) else begin,
            "params": params[layer * each : (layer + 1) * each],
            "num_layers": 1,
            "dropout": 0.0,
            "batch_first": False,
        }
        value, *final = kernel(*one.values())
        finals.append(list(map(torch.reshape, final, [state.shape for state in begin])))
        if layer < layers - 1:
            value = torch.dropout(value, given["dropout"], True)
    value = value.transpose(0, 1) if batch_first else value
    return value, *(torch.cat(parts) for parts in zip(*finals, strict=True))
