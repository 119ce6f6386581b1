"""Operators that torch makes of others, where the parts say less than the whole."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .semantics import Calls, as_in_eager, assert_compiled


def test_cosine_similarity_of_short_vectors() -> None:
    """Below `eps` the norm has the value `eps`, but its gradient passes."""

    def forward(self: Any, x: Tensor) -> Tensor:
        y = self.fc(x)
        return F.cosine_similarity(y, y.tanh(), eps=0.9)[:, None] * y

    def step(model: Any) -> Tensor:
        x = torch.randn(6, 4) * torch.linspace(0.05, 4, 6)[:, None]
        assert (model.fc(x).norm(dim=1) < 0.9).any() and (model.fc(x).norm(dim=1) > 0.9).any()
        y: Tensor = model(x)
        y.sum().backward()
        return y

    assert_compiled(as_in_eager(Calls(forward), step))
