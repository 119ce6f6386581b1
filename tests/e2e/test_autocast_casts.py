"""Under autocast a weight is cast once per step, however often forward and backward read it."""

from __future__ import annotations

import re

import torch
from torch import nn

from ortmodule_py import ORTModule


class Tied(nn.Module):
    """One linear layer that runs three times, and a table that is also the output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(50, 16), nn.Linear(16, 16)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        for _ in range(3):
            x = x + torch.relu(self.layer(x))
        return nn.functional.linear(x, self.table.weight)


def test_a_weight_is_cast_once() -> None:
    torch.manual_seed(0)
    model = ORTModule(Tied())
    with torch.autocast("cpu", torch.bfloat16):
        scores = model(torch.randint(0, 50, (4, 7)))
    scores.float().sum().backward()
    (piece,) = model._compiler.pieces
    for stage in ("joint", "lowered"):
        text = piece.compiled.text(stage)
        cast = re.findall(r"= Cast<to=bf16> \(((?:table|layer)\.\w+)\)", text)
        assert sorted(cast) == ["layer.bias", "layer.weight", "table.weight"], text
