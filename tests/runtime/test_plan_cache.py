"""Plans are kept: shapes that come again are not planned again."""

from __future__ import annotations

import torch
from torch import nn

from ortmodule_py import DebugOptions, LogLevel, ORTModule, last_run_report


def test_a_hundred_shapes_are_planned_once() -> None:
    torch.manual_seed(0)
    model = ORTModule(
        nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)), DebugOptions(LogLevel.ERROR)
    )

    def train_all_shapes() -> int:
        for batch in range(2, 102):
            model(torch.randn(batch, 4)).sum().backward()
        plans = last_run_report(model)["plans"]
        assert isinstance(plans, int)
        return plans

    assert train_all_shapes() == 100
    assert train_all_shapes() == 100
