"""Gives Dynamo the results of recurrent layers without a computation step by step.

torch's Python kernels of `nn.LSTM`, `nn.GRU` and `nn.RNN`, which Dynamo runs on fake tensors for sizes and
types, loop over the sequence: that takes seconds, and makes its length a constant of the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import patch


def _probe(trial: Trial) -> bool:
    layer = nn.RNN(2, 3)
    sequences = [(torch.ones(steps, 2, 2),) for steps in (4, 5, 6)]
    same = trial(lambda: lambda x: layer(x)[0].sin(), *sequences)
    return same and trial.captures <= 2


@patch(
    "recurrent_layers",
    "Recurrent layers are captured once for all lengths of a sequence.",
    "torch._decomp.decompositions:_rnn_helper",
    probe=_probe,
    needed_by=None,
)
def _of_one_step(
    helper: Callable[..., Any],
    input: Tensor,
    hidden: Sequence[Any],
    params: Sequence[Any],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    layer_fn: Callable[..., Any],
) -> Any:
    rest = (hidden, params, has_biases, num_layers, dropout, train, bidirectional, batch_first)
    if get_proxy_mode() is not None or input.dim() != 3:
        return helper(input, *rest, layer_fn)
    time = 1 if batch_first else 0
    value, final = helper(input.narrow(time, 0, 1), *rest, layer_fn)
    first = value.transpose(0, 1) if batch_first else value
    all_steps = first.expand(input.shape[time], -1, -1).clone(memory_format=torch.contiguous_format)
    return all_steps.transpose(0, 1) if batch_first else all_steps, final
