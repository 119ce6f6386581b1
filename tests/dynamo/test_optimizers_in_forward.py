"""Forward that makes an optimizer and takes steps of it, as for latent codes."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.semantics import assert_captures_end


class Decoder(nn.Module):
    """Finds the codes of its data by three steps of SGD with momentum."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 16), nn.SiLU(), nn.Linear(16, 8))

    def forward(self, x: Tensor) -> Tensor:
        code = torch.zeros(x.shape[0], 4, requires_grad=True)
        optimizer = torch.optim.SGD([code], lr=0.1, momentum=0.5)
        for _ in range(3):
            optimizer.zero_grad()
            F.mse_loss(self.layers(code), x).backward(inputs=[code])
            optimizer.step()
        return F.mse_loss(self.layers(code.detach()), x)


def test_each_call_makes_an_optimizer() -> None:
    torch.manual_seed(0)
    assert_captures_end(Decoder(), lambda: (torch.randn(5, 8),), steps=6)
