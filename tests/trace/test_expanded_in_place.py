"""In-place changes of expanded tensors: elements that several indices share."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from ortmodule_py import ORTModule, last_run_report


class _Changing(nn.Module):
    def __init__(self, change: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.change = change

    def forward(self, x: Tensor) -> Tensor:
        y = x * 2
        self.change(y)
        return self.fc(y)


@pytest.mark.filterwarnings("ignore:Use of masked_fill_ on expanded tensors")
@pytest.mark.parametrize("training", [True, False])
def test_a_change_that_eager_allows_happens_once(training: bool) -> None:
    module = _Changing(lambda y: y.expand(3, -1, -1).masked_fill_(y.detach() > 1, 0.5))
    model = ORTModule(copy.deepcopy(module))
    x = torch.randn(5, 4)
    with torch.set_grad_enabled(training):
        assert torch.allclose(model(x), module(x))
    assert last_run_report(model)["eager_pieces"]


def test_a_change_that_eager_refuses_is_refused() -> None:
    module = _Changing(lambda y: y.expand(3, -1, -1).add_(1))
    for model in (module, ORTModule(copy.deepcopy(module))):
        with pytest.raises(RuntimeError, match="single memory location"):
            model(torch.randn(5, 4))
