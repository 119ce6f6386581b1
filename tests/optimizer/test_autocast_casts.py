"""Under autocast a weight is cast once a step, however often and in whichever direction it is read."""

from __future__ import annotations

import re

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ortmodule_py import DebugOptions, LogLevel, ORTModule


class Tied(nn.Module):
    """One layer called three times, and a table that is embedding, head and a weight by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 16)
        self.layer = nn.Linear(16, 16)
        self.head = nn.Linear(16, 50, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        for _ in range(3):
            x = self.layer(x).relu()
        again = F.linear(x.tanh(), self.table.weight)
        return self.head(x).float().sum() + again.float().sum()


def test_a_weight_is_cast_once() -> None:
    model = ORTModule(Tied(), DebugOptions(LogLevel.ERROR))
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(torch.randint(0, 50, (2, 7)))
    loss.backward()
    (piece,) = model._compiler.pieces
    joint = piece.compiled.text("joint")
    weights = re.findall(r"= Cast<to=bf16> \((table\.weight|layer\.weight|layer\.bias)\)", joint)
    assert sorted(weights) == ["layer.bias", "layer.weight", "table.weight"], joint
