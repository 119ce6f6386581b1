"""Small modules that show one thing each."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ChangesInput(nn.Module):
    """Changes an input that requires a gradient in place, which is left to eager PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(2, 2))

    def forward(self, x: Tensor) -> Tensor:
        x.mul_(2)
        return x @ self.w


def not_a_leaf() -> Tensor:
    """An input that may be changed in place."""
    return torch.ones(2, 2, requires_grad=True) * 1
