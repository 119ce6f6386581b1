"""Plans are kept: shapes that come again are not planned again."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ortmodule_py import DebugOptions, LogLevel, ORTModule, last_run_report
from ortmodule_py.dynamo.patches.table import running_torch


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


def test_a_counter_that_no_size_needs_is_not_planned_for() -> None:
    """Its value is right nevertheless, where it comes back."""

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)
            self.steps = 0

        def forward(self, x: Tensor, step: int) -> tuple[Tensor, int]:
            self.steps += 1
            return self.fc(x).tanh(), 2 * step + self.steps

    model = ORTModule(Counting(), DebugOptions(LogLevel.ERROR))
    for step in range(12):
        out, number = model(torch.randn(3, 4), step)
        out.sum().backward()
        assert (number, model.steps) == (3 * step + 1, step + 1)
    report = last_run_report(model)
    # Since torch 2.14 Dynamo does not look at `step` before the counter is no constant any more.
    most = 4 if running_torch() < (2, 14) else 5
    assert report["plans"] <= report["captures"] <= most


def test_a_number_that_is_computed_with_is_planned_for() -> None:
    class Scaled(nn.Module):
        def forward(self, x: Tensor, step: int) -> Tensor:
            return x * step

    model = ORTModule(Scaled(), DebugOptions(LogLevel.ERROR))
    for step in (3, 4, 5, 4, 7):
        x = torch.ones(2, 3, requires_grad=True)
        model(x, step).sum().backward()
        assert x.grad is not None and torch.equal(x.grad, torch.full((2, 3), float(step)))
