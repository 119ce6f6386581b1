"""`torch.func.linearize` in forward."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.func import linearize

from ortmodule_py import DebugOptions, LogLevel, ORTModule


class Pushed(nn.Module):
    """A layer behind a network and its derivative in one direction."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.last = nn.Sequential(nn.Linear(3, 4), nn.Tanh()), nn.Linear(4, 2)

    def forward(self, x: Tensor, direction: Tensor) -> Tensor:
        y, push = linearize(self.net, x)
        return self.last(y + push(direction)).square().sum()


def test_linearize_is_no_capture_in_each_call() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    eager = Pushed()
    model = ORTModule(copy.deepcopy(eager), DebugOptions(log_level=LogLevel.ERROR))
    counted = torch._dynamo.utils.counters["frames"]
    for step in range(4):
        x, direction = torch.randn(2, 5, 3)
        for module in (eager, model):
            module.zero_grad()
            module(x, direction).backward()
        if step == 1:
            converted = counted["total"]
    assert counted["total"] == converted
    assert model._compiler.pieces
    for wanted, parameter in zip(eager.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, wanted.grad)
