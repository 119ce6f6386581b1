"""Parts `optimizers` and `optimizer speed`: FusedAdam and FP16_Optimizer on the GPU, against the CPU's
kernels and torch."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.optimizers import gpt_shapes
from ortmodule_py.optim import FP16_Optimizer, FusedAdam

from .part import EVEN, Context, Part, Row
from .profile import block_ms

_STEPS = 50
# More tensors than a launch takes, some of them empty, long or of odd length.
_SHAPES = [(i % 7,) for i in range(140)] + [(33, 65), (70001,), (16384,), (3, 5, 7, 11)]
_HYPER: dict[str, Any] = {"lr": 1e-2, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.1}


def _params(dtype: torch.dtype, device: torch.device | str) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    values = [torch.randn(shape, generator=generator) for shape in _SHAPES]
    return [nn.Parameter(value.to(device, dtype)) for value in values]


def _set_grads(step: int, *lists: list[Tensor]) -> None:
    generator = torch.Generator().manual_seed(100 + step)
    for shape, *params in zip(_SHAPES, *lists, strict=True):
        grad = torch.randn(shape, generator=generator)
        for param in params:
            param.grad = grad.to(param.device, param.dtype, copy=True)


def _difference(found: list[Tensor], exact: list[Tensor]) -> float:
    a, b = (torch.cat([p.detach().double().cpu().flatten() for p in ps]) for ps in (found, exact))
    return float((a - b).abs().max() / b.abs().max())


def _row(difference: float, allowed: float, **facts: Any) -> Row:
    ok = difference <= allowed
    why = "" if ok else f"differs by {difference:.1e}, more than {allowed:.1e}"
    return {"difference": difference, **facts, "ok": ok, "why": why}


def _steps(dtype: torch.dtype, mode: int, allowed: float) -> Callable[[Context], Row]:
    """The same steps on the GPU and, by the CPU's kernel, on the CPU."""

    def run(context: Context) -> Row:
        ours, exact = _params(dtype, context.device), _params(dtype, "cpu")
        optimizers = [FusedAdam(params, adam_w_mode=mode, **_HYPER) for params in (ours, exact)]
        for step in range(_STEPS):
            _set_grads(step, ours, exact)
            for optimizer in optimizers:
                optimizer.step()
        return _row(_difference(ours, exact), allowed)

    return run


def _torch(context: Context) -> Row:
    """Torch's fused AdamW and ours, both against float64: we may be twice as far off, or by half a
    unit in the last place of the largest parameter a step."""
    types = (torch.float32, torch.float32, torch.float64)
    ours, theirs, exact = (_params(dtype, context.device) for dtype in types)
    optimizers = [
        FusedAdam(ours, adam_w_mode=2, **_HYPER),
        torch.optim.AdamW(theirs, fused=True, **_HYPER),
        torch.optim.AdamW(exact, fused=True, **_HYPER),
    ]
    for step in range(_STEPS):
        _set_grads(step, ours, theirs, exact)
        for optimizer in optimizers:
            optimizer.step()
    torchs = _difference(theirs, exact)
    return _row(_difference(ours, exact), max(2 * torchs, _STEPS * 2.0**-24), torchs=torchs)


def _scaler(context: Context) -> Row:
    """With GradScaler as without, and no step where a gradient is infinite."""
    scaled, plain = _params(torch.float32, context.device), _params(torch.float32, context.device)
    optimizers = FusedAdam(scaled, **_HYPER), FusedAdam(plain, **_HYPER)
    scaler = torch.amp.GradScaler(context.device.type, init_scale=1024.0)
    for step in range(6):
        _set_grads(step, scaled, plain)
        scaler.scale(torch.ones((), device=context.device))
        factor = scaler.get_scale()
        for param in scaled:
            param.grad.mul_(factor)
        if step == 3:
            scaled[-1].grad.view(-1)[-1] = float("inf")
        else:
            optimizers[1].step()
        scaler.step(optimizers[0])
        scaler.update()
    counts = {int(state["step"]) for state in optimizers[0].state.values()}
    row = _row(_difference(scaled, plain), 0.0, steps=sorted(counts))
    return row if counts == {5} else row | {"ok": False, "why": "an infinite step was counted"}


def _captured(context: Context) -> Row:
    """Replays of a captured step move parameters as steps do, with a rate that changes."""
    captured, plain = (_params(torch.float32, context.device) for _ in range(2))
    rates = [torch.tensor(0.01, device=context.device) for _ in range(2)]
    optimizers = [
        FusedAdam(params, lr=rate, weight_decay=0.1)
        for params, rate in zip((captured, plain), rates, strict=True)
    ]
    _set_grads(0, captured, plain)
    for optimizer in optimizers:
        optimizer.step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizers[0].step()
    for step in range(4):
        for rate in rates:
            rate.fill_(0.01 / (step + 1))
        graph.replay()
        optimizers[1].step()
    return _row(_difference(captured, plain), 0.0)


def _fp16(context: Context) -> Row:
    """Masters and scale as on the CPU, overflow included."""
    pairs = []
    for device in (context.device, "cpu"):
        params = _params(torch.float16, device)
        inner = FusedAdam(params, lr=1e-2)
        pairs.append((params, FP16_Optimizer(inner, init_scale=64.0)))
    for step in range(8):
        generator = torch.Generator().manual_seed(step)
        weights = [torch.randn(shape, generator=generator) for shape in _SHAPES]
        for params, optimizer in pairs:
            optimizer.zero_grad()
            terms = [
                (p.float() * w.to(p.device)).sum() for p, w in zip(params, weights, strict=True)
            ]
            optimizer.backward(torch.stack(terms).sum() * (1e5 if step == 5 else 1.0))
            optimizer.step()
    ours, exact = (list(optimizer.master_params()) for _, optimizer in pairs)
    scales = [optimizer.loss_scale for _, optimizer in pairs]
    row = _row(_difference(ours, exact), 1e-6, scales=scales)
    same = scales[0] == scales[1] == 32.0
    return row if same else row | {"ok": False, "why": "the overflow was not seen"}


def _speed(context: Context) -> Row:
    """Time of a step on a GPT's parameters, by events, in turn."""
    times: dict[str, list[float]] = {"ours": [], "fused": []}
    optimizers: dict[str, torch.optim.Optimizer] = {}
    for name in times:
        shapes = gpt_shapes(12, 1024, 50_000)
        params = [nn.Parameter(torch.randn(shape, device=context.device)) for shape in shapes]
        for param in params:
            param.grad = torch.randn_like(param)
        optimizers[name] = (
            FusedAdam(params, adam_w_mode=2, **_HYPER)
            if name == "ours"
            else torch.optim.AdamW(params, fused=True, **_HYPER)
        )
    for turn in range(7):
        for name, optimizer in optimizers.items():
            each = block_ms(optimizer.step, 5)
            if turn > 0:
                times[name].append(each)
    medians = {name: statistics.median(values) for name, values in times.items()}
    ratio = medians["ours"] / medians["fused"]
    why = "" if ratio <= 1 + EVEN else "slower than torch"
    return {"ms": medians, "against_fused": ratio, "ok": not why, "why": why}


_ROWS: dict[str, Callable[[Context], Row]] = {
    "adam float32": _steps(torch.float32, 0, 1e-6),
    "adamw transformers float32": _steps(torch.float32, 1, 1e-6),
    "adamw float32": _steps(torch.float32, 2, 1e-6),
    "adamw float64": _steps(torch.float64, 2, 1e-14),
    "adamw bfloat16": _steps(torch.bfloat16, 2, 2e-2),
    "adamw float16": _steps(torch.float16, 2, 2e-3),
    "adamw against torch": _torch,
    "grad scaler": _scaler,
    "captured step": _captured,
    "fp16 optimizer": _fp16,
}

OPTIMIZERS = Part(
    "optimizers",
    "FusedAdam and FP16_Optimizer against the CPU's kernels and torch.optim.AdamW",
    lambda: list(_ROWS),
    lambda name, context: _ROWS[name](context),
    limit_s=90,
)
OPTIMIZER_SPEED = Part(
    "optimizer speed",
    "a step of FusedAdam against torch's fused AdamW on a GPT's parameters",
    lambda: ["gpt"],
    lambda _, context: _speed(context),
    limit_s=30,
    timed=True,
)
