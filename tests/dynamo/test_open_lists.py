"""Lists of tensors that are another kind of list in each call: captured a few times, then read in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.semantics import Calls, as_in_eager

_WHAT = "a list of tensors whose length or sizes change from call to call"


def _loop(self: Any, x: Tensor, targets: Any) -> Tensor:
    y = self.second(self.fc(x).sin()).tanh()
    loss = y.new_zeros(())
    for row, target in zip(y, targets, strict=True):
        loss = loss + (row - target["boxes"]).square().mean() + target["weight"].sum()
    return loss * y.mean()


def _called(self: Any, x: Tensor, targets: Any) -> Tensor:
    y = self.second(self.fc(x).sin()).tanh()
    loss = _distance(y, [target["boxes"] for target in targets])
    return loss * y.exp().mean()


def _distance(y: Tensor, boxes: list[Tensor]) -> Tensor:
    return (y.mean(0) - torch.cat(boxes)).abs().mean()


def _grows(self: Any, x: Tensor, targets: Any) -> Tensor:
    y: Tensor = self.fc(x)
    self.history += [y.detach().mean()]
    return self.second(y).tanh().sum()


def _is_replaced(self: Any, x: Tensor, targets: Any) -> Tensor:
    y: Tensor = self.fc(x)
    self.history = [*self.history, y.detach().mean()]
    return self.second(y).tanh().sum() + torch.stack(self.history).sum()


def _module(forward: Callable[..., Tensor]) -> nn.Module:
    module = Calls(forward, second=nn.Linear(4, 4))
    module.history = []  # type: ignore[assignment]
    return module


def _batch(seed: int) -> tuple[Tensor, list[dict[str, Tensor]]]:
    made = torch.Generator().manual_seed(seed)
    rows = int(torch.randint(2, 6, (1,), generator=made))
    targets = []
    for count in torch.randint(1, 4, (rows,), generator=made).tolist():
        targets.append({"boxes": torch.rand(count, 4, generator=made), "weight": torch.ones(1)})
    return torch.rand(rows, 4, generator=made), targets


@pytest.mark.parametrize("forward", [_loop, _called, _grows, _is_replaced])
def test_what_stands_around_the_list_is_captured_once(forward: Callable[..., Tensor]) -> None:
    def step(model: Any) -> list[Tensor]:
        losses = [model(*_batch(seed)) for seed in range(24)]
        sum(losses).backward()  # type: ignore[union-attr]
        return losses

    report = as_in_eager(_module(forward), step)
    assert report["captures"] < 20
    assert report["pieces_run"] and any(_WHAT in said for said in report["graph_breaks"])


def test_lists_of_a_few_kinds_are_captured() -> None:
    def step(model: Any) -> list[Tensor]:
        batches = [_batch(seed) for seed in range(3)]
        return [model(*batch) for batch in 3 * batches]

    report = as_in_eager(_module(_called), step)
    assert report["compiled"] and not report["graph_breaks"]
