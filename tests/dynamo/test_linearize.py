"""`torch.func.linearize` in forward."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import linearize

from tests.semantics import assert_captures_end


class Pushed(nn.Module):
    """A layer behind a network and its derivative in one direction."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.last = nn.Sequential(nn.Linear(3, 4), nn.Tanh()), nn.Linear(4, 2)

    def forward(self, x: Tensor, direction: Tensor) -> Tensor:
        y, push = linearize(self.net, x)
        return self.last(y + push(direction)).square().sum()


def test_linearize_is_no_capture_in_each_call() -> None:
    torch.manual_seed(0)
    assert_captures_end(Pushed(), lambda: torch.randn(2, 5, 3).unbind(), steps=4)
