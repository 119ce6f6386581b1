"""Outputs have eager's strides where the functional form of an operator would give others."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ortmodule_py import ORTModule


class FilledInPlace(nn.Module):
    """`masked_fill_` keeps the layout of its tensor, `masked_fill` makes a row-major one."""

    def forward(self, x: Tensor) -> Tensor:
        y = x * 2
        y.masked_fill_(y.detach() > 1, 0.5)
        return y[..., :2]


def test_in_place_change_keeps_the_layout() -> None:
    x = torch.randn(4, 3, 5).transpose(0, -1)
    want = FilledInPlace()(x)
    got = ORTModule(FilledInPlace())(x)
    assert got.stride() == want.stride()
    torch.testing.assert_close(got, want)
