"""Part `convolution plans`: convolutions by cuDNN's graph API, against its classic calls.

Gradients must be as near to float64 as eager's, a recomputing step must have the same bits, the peak must be
as planned, and a ResNet-50 no slower. The last row keeps the outcome for this GPU and build:
ORTMODULE_GRAPH_CONVOLUTIONS=auto follows it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks import models
from ortmodule_py import _C, ORTModule, last_run_report
from ortmodule_py.base.graph_convolutions import FEATURE

from .convolutions import ConvNet
from .offload import times
from .outcome import outcome
from .part import EVEN, Context, Part, Row
from .speed import ResNet50
from .training import Gradients, compare, gradients, variables, wrapped

_SEARCHES = ("EXHAUSTIVE", "HEURISTIC")
_NARROW = {"bfloat16": torch.bfloat16, "float16": torch.float16}
_SPEED = "resnet-50"
_OUTCOME = "outcome"


def _model(module: nn.Module, setting: str, context: Context, **environment: str) -> ORTModule:
    with variables(ORTMODULE_GRAPH_CONVOLUTIONS=setting, **environment):
        return wrapped(module, context)


def _gradients(run: Callable[..., Any], model: nn.Module, batch: models.Batch) -> Gradients:
    """Of the second step, whose plans have been measured."""
    gradients(run, model, batch)
    return gradients(run, model, batch)[1]


def _right(search: str, kind: str, context: Context) -> Row:
    torch.manual_seed(0)
    wide = ConvNet().to(context.device, torch.float64)
    image = torch.randn(4, 3, 24, 20, device=context.device, dtype=torch.float64)
    exact = gradients(wide, wide, {"image": image})[1]
    module, batch = copy.deepcopy(wide).to(_NARROW[kind]), {"image": image.to(_NARROW[kind])}
    eager = gradients(module, module, batch)[1]
    before = _C.graph_convolution_counts()
    model = _model(module, "1", context, ORTMODULE_CONV_ALGO_SEARCH=search)
    ours = _gradients(model, model, batch)
    counts = _C.graph_convolution_counts()
    again = _model(
        module, "1", context, ORTMODULE_CONV_ALGO_SEARCH=search, ORTMODULE_MEMORY_OPT_LEVEL="1"
    )
    other = [n for n, g in _gradients(again, again, batch).items() if not torch.equal(g, ours[n])]
    report = last_run_report(model)
    row = compare(eager, ours, exact, 2e-2)
    row |= {"planned": report["planned_peak_bytes"], "measured": report["measured_peak_bytes"]}
    row |= {name: counts[name] - before[name] for name in ("problems", "without_plan", "runs")}
    why = row["why"]
    if other:
        why = why or f"other bits at level 1: {', '.join(other)}"
    if row["runs"] == 0:
        why = why or "no convolution ran by the graph API"
    if row["measured"] > row["planned"]:
        why = why or f"peak {row['measured']}, planned {row['planned']}"
    return row | {"ok": not why, "why": why}


class _Autocast(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, **batch: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            loss: torch.Tensor = self.body(**batch)
        return loss


def _speed(context: Context) -> Row:
    """A step of 64 images of 224 pixels under autocast."""
    batch = {
        "images": torch.randn(64, 3, 224, 224, device=context.device),
        "labels": torch.randint(0, 1000, (64,), device=context.device),
    }
    module = _Autocast(ResNet50()).to(context.device)
    steps = []
    for setting in ("0", "1"):
        model = _model(module, setting, context)
        _gradients(model, model, batch)  # makes its plans before the setting changes
        steps.append(model)
    peaks = [last_run_report(model)["planned_peak_bytes"] / 2**20 for model in steps]
    classic, graph = times(steps, batch)
    why = "" if graph <= (1 + EVEN) * classic else "slower than the classic calls"
    row = {"ms": graph, "classic_ms": classic, "MiB": peaks[1], "classic_MiB": peaks[0]}
    return {**row, "ok": not why, "why": why}


def _rows() -> list[str]:
    kinds = [f"{search} {kind}" for search in _SEARCHES for kind in _NARROW]
    return [*kinds, _SPEED, _OUTCOME]


def _run(row: str, context: Context) -> Row:
    if row == _OUTCOME:
        return outcome(FEATURE, set(_rows()) - {_OUTCOME}, context)
    try:
        return _speed(context) if row == _SPEED else _right(*row.split(), context)
    finally:
        _C.use_graph_convolutions(False)


GRAPH_CONVOLUTIONS = Part(
    "convolution plans",
    "convolutions by cuDNN's graph API: gradients, bits, peaks, and a ResNet-50's time; turns it on",
    _rows,
    _run,
    limit_s=180,
    row_s=5.0,
    timed=True,
)
