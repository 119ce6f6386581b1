"""Results of torch's fused attention are planned as torch lays them out: nothing is copied."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from ortmodule_py import ORTModule
from ortmodule_py.report.plan_table import training_piece

_ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


class _Heads(nn.Module):
    """Heads split off one product and merged again."""

    def __init__(self) -> None:
        super().__init__()
        self.inward = nn.Linear(64, 192)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.inward(x).view(2, 8, 3, 4, 16).permute(2, 0, 3, 1, 4).unbind()
        y: Tensor = _ATTENTION(q, k, v, 0.0, False)[0]
        return y.transpose(1, 2).reshape(2, 8, 64).sin()


def test_heads_are_merged_without_a_copy() -> None:
    torch.manual_seed(0)
    module = _Heads()
    model = ORTModule(copy.deepcopy(module))
    x = torch.randn(2, 8, 64)
    for run in (module, model):
        run(x).square().sum().backward()
    torch.testing.assert_close(model.inward.weight.grad, module.inward.weight.grad)
    piece = training_piece(model._compiler)
    assert piece is not None
    steps = piece.text("plan").splitlines()
    assert sum("dispatcher_attention [ATen]" in step for step in steps) == 2
    assert "copy of ATen" not in piece.text("plan")
