"""LSTMSteps: layers of nn.LSTM."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .case import Case, case, normal

_LSTM = "ortmodule_py.lstm.default"


def _operands(n: int, directions: int, layers: int, biases: bool) -> tuple[Any, ...]:
    """Sequences of 4 steps, batches of n, widths of 4 and 5; torch's fake kernels fix the steps."""
    states = [normal(directions * layers, n, 5) for _ in range(2)]
    params = []
    for layer in range(layers):
        for _ in range(directions):
            params += [normal(20, 5 * directions if layer else 4), normal(20, 5)]
            params += [normal(20), normal(20)] if biases else []
    return normal(4, n, 4), states, params


def _call(layers: int, directions: int, biases: bool, batch_first: bool) -> Callable[..., Any]:
    def run(x: Tensor, states: list[Tensor], params: list[Tensor]) -> Any:
        x = x.transpose(0, 1) if batch_first else x
        rest = (biases, layers, 0.0, True, directions == 2, batch_first)
        return torch.lstm(x, states, params, *rest)

    return run


def cases() -> list[Case]:
    def one(
        layers: int = 1, directions: int = 1, biases: bool = True, batch_first: bool = False
    ) -> Case:
        return case(
            _LSTM,
            lambda n: _operands(n, directions, layers, biases),
            function=_call(layers, directions, biases, batch_first),
            label=f"-{layers}x{directions}{'' if biases else '-plain'}{'-first' * batch_first}",
            contains="LSTMSteps",
            # Eager's own sum over a few steps in 16 bits errs by chance less or more than this.
            tolerance=4.0,
        )

    return [
        one(),
        one(directions=2, batch_first=True),
        one(layers=2, directions=2, biases=False),
    ]
