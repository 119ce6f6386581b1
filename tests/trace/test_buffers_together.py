"""Several buffers that change in one forward: each new content follows from the old ones."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from ortmodule_py import ORTModule, last_run_report


class Two(nn.Module):
    a: Tensor
    b: Tensor

    def __init__(self, change: Callable[[Tensor, Tensor, Tensor], None]) -> None:
        super().__init__()
        self.change, self.fc = change, nn.Linear(4, 4)
        self.register_buffer("a", torch.randn(4, 4))
        self.register_buffer("b", torch.randn(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        with torch.no_grad():
            self.change(self.a, self.b, y.detach())
        return (y @ self.a).square().sum() + (y @ self.b).sum()


def _delay(a: Tensor, b: Tensor, y: Tensor) -> None:
    new = 0.9 * a + 0.1 * y.mean(0)
    b.copy_(a)
    a.copy_(new)


def _swap(a: Tensor, b: Tensor, y: Tensor) -> None:
    old = a.clone()
    a.copy_(b)
    b.copy_(old)


def _transpose(a: Tensor, b: Tensor, y: Tensor) -> None:
    a.copy_(a.t().clone())
    b.copy_(a.t())


CHANGES = {"delay": _delay, "swap": _swap, "transpose": _transpose}


@pytest.mark.parametrize("change", CHANGES)
def test_buffers_are_eagers(change: str) -> None:
    torch.manual_seed(0)
    eager = Two(CHANGES[change])
    ours = ORTModule(copy.deepcopy(eager))
    for _ in range(3):
        x = torch.randn(6, 4)
        losses = [runner(x) for runner in (eager, ours)]
        torch.testing.assert_close(losses[1], losses[0])
        for loss in losses:
            loss.backward()
    assert last_run_report(ours)["compiled"]
    for (name, mine), theirs in zip(ours.module.named_buffers(), eager.buffers(), strict=True):
        torch.testing.assert_close(mine, theirs, msg=name)
    torch.testing.assert_close(ours.module.fc.weight.grad, eager.fc.weight.grad)
