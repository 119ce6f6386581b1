"""Part `attention`: attention that models write as products and a softmax, as torch's fused operator.

Gradients must be as near to float64 as eager's, a step must hold less, and take no longer. The last row keeps
the outcome for this GPU and build: ORTMODULE_FUSED_ATTENTION=auto follows it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks import models
from ortmodule_py import ORTModule, last_run_report
from ortmodule_py.base.fused_attention import FEATURE
from ortmodule_py.report.plan_table import training_piece

from .offload import times
from .outcome import outcome
from .part import Context, Part, Row
from .training import compare, gradients, variables, wrapped

_OUTCOME = "outcome"
_DROPOUT = "dropout"
_SLOWEST = 1.05
"""Of the time of the parts."""


class _Attention(nn.Module):
    """Self-attention with its scores written out, under one of the masks that models have."""

    def __init__(self, width: int, heads: int, mask: str, dropout: float) -> None:
        super().__init__()
        self.heads, self.mask, self.dropout = heads, mask, dropout
        self.project = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        q, k, v = (
            part.view(n, length, self.heads, -1).transpose(1, 2)
            for part in self.project(x).chunk(3, -1)
        )
        scores = q @ k.transpose(-2, -1) * (width / self.heads) ** -0.5
        if self.mask == "causal":
            seen = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
            scores = scores.masked_fill(~seen, float("-inf"))
        if self.mask == "padding":
            hidden = torch.arange(length, device=x.device) >= length - 3
            scores = scores + hidden.float() * torch.finfo(torch.float32).min
        p = F.dropout(scores.float().softmax(-1).to(scores.dtype), self.dropout, self.training)
        return self.out((p.to(v.dtype) @ v).transpose(1, 2).reshape(n, length, width))


class _Layers(nn.Module):
    def __init__(self, width: int, heads: int, mask: str, dropout: float) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.layers = nn.ModuleList(_Attention(width, heads, mask, dropout) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + layer(norm(x))
        return x.float().square().mean()


def _made(
    mask: str, dropout: float, context: Context, large: bool
) -> tuple[nn.Module, models.Batch]:
    torch.manual_seed(1)
    width, heads, rows, length = (1024, 16, 8, 1024) if large else (64, 4, 3, 51)
    module = _Layers(width, heads, mask, dropout).to(context.device)
    return module, {"x": torch.randn(rows, length, width, device=context.device)}


def _fused(module: nn.Module, context: Context, on: str = "1") -> ORTModule:
    with variables(ORTMODULE_FUSED_ATTENTION=on):
        return wrapped(copy.deepcopy(module), context)


def _cast(module: nn.Module, kind: str, context: Context) -> Callable[..., Tensor]:
    dtype = torch.float16 if kind == "float16" else torch.bfloat16

    def run(**given: Any) -> Tensor:
        with torch.autocast(context.device.type, dtype, enabled=kind != "float32"):
            loss: Tensor = module(**given)
        return loss

    return run


def _why_not_fused(model: ORTModule) -> str:
    fused = training_piece(model._compiler).text("lowered").count("_backward.default")
    return "" if fused == 3 else f"{fused} of 3 layers are fused"


def _close(mask: str, kind: str, context: Context) -> Row:
    """Gradients against float64, and the bytes of a step."""
    module, batch = _made(mask, 0.0, context, large=False)
    wide = copy.deepcopy(module).double()
    exact = gradients(wide, wide, {name: value.double() for name, value in batch.items()})[1]
    eager = gradients(_cast(module, kind, context), module, batch)[1]
    parts, fused = _fused(module, context, "0"), _fused(module, context)
    gradients(_cast(parts, kind, context), parts, batch)
    ours = gradients(_cast(fused, kind, context), fused, batch)[1]
    row = compare(eager, ours, exact, 1e-4 if kind == "float32" else 1e-2)
    bytes_ = [last_run_report(model)["planned_peak_bytes"] for model in (parts, fused)]
    row |= {"MiB": bytes_[1] / 2**20, "of the parts": bytes_[1] / bytes_[0]}
    why = _why_not_fused(fused) or (row["why"] if not row["ok"] else "")
    why = why or ("it holds more than the parts" if bytes_[1] >= bytes_[0] else "")
    return row | {"ok": not why, "why": why}


def _drops(context: Context) -> Row:
    """The same seed gives the same gradients, another one others, and their mean is that without dropout."""
    module, batch = _made("causal", 0.2, context, large=False)
    model, without = _fused(module, context), _made("causal", 0.0, context, large=False)[0]
    exact = gradients(without, without, batch)[1]
    first, again = (gradients(model, model, batch)[1] for _ in range(2))
    means = {name: torch.zeros_like(value) for name, value in exact.items()}
    draws = 64
    for seed in range(draws):
        torch.manual_seed(seed)
        model.zero_grad(set_to_none=True)
        model(**batch).backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            means[name] += parameter.grad / draws
    name = "layers.0.out.weight"
    off = float((means[name] - exact[name]).norm() / exact[name].norm())
    near = float((first[name] - again[name]).norm() / exact[name].norm())
    why = _why_not_fused(model)
    why = why or (f"one seed, other gradients: {near:.2g}" if near > 1e-4 else "")
    why = why or (f"the mean is off by {off:.2g}" if not off < 0.2 else "")
    return {"error": off, "ok": not why, "why": why}


def _beside(kind: str, context: Context) -> Row:
    """A step of long rows: fused against the parts."""
    module, batch = _made("causal", 0.1, context, large=True)
    if kind == "bfloat16":
        module = module.bfloat16()
        batch = {name: value.bfloat16() for name, value in batch.items()}
    parts, fused = _fused(module, context, "0"), _fused(module, context)
    ms = list(times([parts, fused], batch))
    bytes_ = [last_run_report(model)["planned_peak_bytes"] for model in (parts, fused)]
    ratio = ms[1] / ms[0]
    why = "" if ratio <= _SLOWEST else f"{ratio:.2f} of the time of the parts"
    return {
        "ms": ms[1],
        "parts": ms[0],
        "ratio": ratio,
        "of the parts": bytes_[1] / bytes_[0],
        "ok": not why,
        "why": why,
    }


_KINDS = ("float32", "float16", "bfloat16")
_MASKS = ("none", "causal", "padding")
_SPEED = ("float32 beside", "bfloat16 beside")


def _rows() -> list[str]:
    close = [f"{mask} {kind}" for mask in _MASKS for kind in _KINDS]
    return [*close, _DROPOUT, *_SPEED, _OUTCOME]


def _run(row: str, context: Context) -> Row:
    if row == _OUTCOME:
        return outcome(FEATURE, set(_rows()) - {_OUTCOME}, context)
    if row == _DROPOUT:
        return _drops(context)
    if row in _SPEED:
        return _beside(row.split()[0], context)
    mask, kind = row.split()
    return _close(mask, kind, context)


ATTENTION = Part(
    "attention",
    "attention written as products and a softmax becomes torch's fused operator; turns it on",
    _rows,
    _run,
    limit_s=120,
    row_s=3.0,
    timed=True,
)
