"""Sequences of floats (batch, time, features): one capture for all lengths, from the first on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.semantics import as_in_eager, assert_whole

LENGTHS = (6, 9, 12, 4)


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(8, 6, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> Any:
        return self.rnn(x)[0]


def _encoder() -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)


def _step(model: Any) -> list[Any]:
    results = []
    for length in LENGTHS:
        x = torch.randn(3, length, 8, requires_grad=True)
        y = model(x)
        y.exp().mean().backward()
        results += [y, x.grad]
    return results


@pytest.mark.parametrize("make", [_Recurrent, _encoder, lambda: nn.Linear(8, 4)])
def test_another_length_is_no_capture(make: Any) -> None:
    torch.manual_seed(0)
    assert_whole(as_in_eager(make(), _step), captures=1)
