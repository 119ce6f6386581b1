"""With ORTMODULE_RNG=torch a dropout that nothing reads still advances the generator."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ortmodule_py import ORTModule


class UnreadDropout(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        F.dropout(x, 0.5)
        return F.dropout(x, 0.5)


def test_later_draws_are_eagers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_RNG", "torch")
    x = torch.randn(8, 8)
    results = []
    for module in (UnreadDropout(), ORTModule(UnreadDropout())):
        torch.manual_seed(3)
        results.append(module(x))
    assert torch.equal(results[0], results[1])
