"""Images stay channels-last from operator to operator, as in eager PyTorch, and are not copied."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from ortmodule_py import ORTModule, last_run_report, testing

testing.install_counting_allocator()


class Images(nn.Module):
    """Convolution, norm, both kinds of pooling, an upsampling that torch runs, and a concat."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(8, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.second = nn.Conv2d(32, 8, 1)
        self.up = nn.ConvTranspose2d(16, 16, 2, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        wide = torch.relu(self.norm(self.first(x)))
        narrow = nn.functional.max_pool2d(wide, 2) + nn.functional.avg_pool2d(wide, 2)
        return self.second(torch.cat([wide, self.up(narrow)], 1))


def _copies(model: ORTModule) -> list[str]:
    """The copies of operands that the plan had to insert."""
    text = model._compiler.pieces[0].compiled.text("plan")
    return [line for line in text.splitlines() if line.startswith("note: copy")]


@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format])
def test_images_keep_their_memory_format(memory_format: torch.memory_format) -> None:
    torch.manual_seed(0)
    module = Images().to(memory_format=memory_format)
    x = torch.randn(2, 8, 12, 10).to(memory_format=memory_format)
    wide = copy.deepcopy(module).double()
    model = ORTModule(copy.deepcopy(module))
    ones = torch.ones_like(module(x))
    for _ in range(2):
        model.zero_grad()
        with testing.measure_peak() as peak:
            model(x).backward(ones)
    want = wide(x.double())
    assert model(x).stride() == module(x).stride()
    torch.testing.assert_close(model(x).double(), wide(x.double()), rtol=1e-4, atol=1e-4)
    want.backward(torch.ones_like(want))
    for ours, exact in zip(model.parameters(), wide.parameters(), strict=True):
        assert ours.grad is not None and exact.grad is not None
        assert ours.grad.stride() == ours.stride()
        torch.testing.assert_close(ours.grad.double(), exact.grad, rtol=1e-3, atol=1e-3)
    assert _copies(model) == []
    counted = peak.peak_bytes - peak.start_bytes
    # The counting allocator's headers, of 64 bytes each, are taken for scratch.
    assert abs(counted - last_run_report(model)["planned_peak_bytes"]) <= 1024
