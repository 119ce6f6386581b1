"""Part `convolutions`: a small ConvNet under each search for cuDNN's algorithms."""

from __future__ import annotations

import copy

import torch
from torch import nn

from benchmarks import models
from ortmodule_py import last_run_report

from .operators import full_float32
from .part import Context, Part, Row
from .training import compare, gradients, variables, wrapped

_SEARCHES = ("EXHAUSTIVE", "HEURISTIC", "DEFAULT")
_KINDS = ("row-major", "channels-last", "bfloat16", "torch")
"""What else is varied; `torch`: cuDNN is switched off in torch, and its own kernels stay."""


class ConvNet(nn.Module):
    """Groups, strides, dilation, pixels as channels, one and three spatial dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.wide = nn.Conv2d(16, 32, 3, stride=2, padding=2, dilation=2, bias=False)
        self.grouped = nn.Conv2d(32, 32, 3, padding=1, groups=4)
        self.depthwise = nn.Conv2d(32, 32, 3, padding=1, groups=32)
        self.pixels = nn.Conv2d(32, 16, 1)
        self.line = nn.Conv1d(16, 16, 5, padding=2)
        self.volume = nn.Conv3d(4, 4, 3, padding=1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.pixels(self.depthwise(self.grouped(self.wide(self.first(image).tanh()).tanh())))
        line = self.line(x.flatten(2))
        volume = self.volume(x.unflatten(1, (4, 4)))
        return line.float().square().mean() + volume.float().square().mean()


def _same_bits(module: nn.Module, batch: models.Batch, context: Context, first: object) -> str:
    """Why gradients of a second module that recomputes have other bits, or nothing."""
    with variables(ORTMODULE_MEMORY_OPT_LEVEL="1"):
        again = wrapped(module, context)
    found = gradients(again, again, batch)[1]
    assert isinstance(first, dict)
    other = [name for name, g in first.items() if not torch.equal(g, found[name])]
    return f"other bits at level 1: {', '.join(other)}" if other else ""


def _run(row_name: str, context: Context) -> Row:
    """Gradients against float64, the same bits at level 1, and a peak as planned."""
    search, _, kind = row_name.partition(" ")
    torch.manual_seed(0)
    module = ConvNet().to(context.device)
    image = torch.randn(4, 3, 24, 20, device=context.device)
    if kind == "channels-last":
        image = image.contiguous(memory_format=torch.channels_last)
    narrow = torch.bfloat16 if kind == "bfloat16" else torch.float32
    module, image = module.to(narrow), image.to(narrow)
    wide = copy.deepcopy(module).double()
    exact = gradients(wide, wide, {"image": image.double()})[1]
    batch = {"image": image}
    enabled = torch.backends.cudnn.enabled
    torch.backends.cudnn.enabled = kind != "torch"
    try:
        with full_float32(), variables(ORTMODULE_CONV_ALGO_SEARCH=search):
            eager = gradients(module, module, batch)[1]
            model = wrapped(module, context)
            ours = gradients(model, model, batch)[1]
            bits = _same_bits(module, batch, context, ours) if kind != "torch" else ""
    finally:
        torch.backends.cudnn.enabled = enabled
    report = last_run_report(model)
    row = compare(eager, ours, exact, 2e-2 if kind == "bfloat16" else 1e-4)
    row |= {"planned": report["planned_peak_bytes"], "measured": report["measured_peak_bytes"]}
    row |= {"nondeterministic": report["nondeterministic_kernels"]}
    why = row["why"] or bits or ("" if report["compiled"] else str(report["eager_pieces"]))
    return row | {"ok": not why, "why": why}


CONVOLUTIONS = Part(
    "convolutions",
    "a ConvNet under each search for cuDNN's algorithms, against float64 and at level 1",
    lambda: [f"{search} {kind}" for search in _SEARCHES for kind in _KINDS],
    _run,
    on_host=True,
    limit_s=180,
)
