"""Part `smoke`: code that runs nowhere without a GPU, in seconds a row."""

from __future__ import annotations

import copy
import itertools
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ortmodule_py import ORTModule, last_run_report
from ortmodule_py.report.plan_table import training_piece

from .part import Context, Part, Row
from .training import compare, gradients, wrapped

_ROOT = Path(__file__).resolve().parents[2]
BACKENDS = ("as torch chooses", "flash", "efficient", "cudnn", "math")


class Attention(nn.Module):
    """Heads split off one product and merged again, as in a transformer layer."""

    def __init__(
        self, width: int, heads: int, *, causal: bool = True, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.heads, self.causal, self.dropout = heads, causal, dropout
        self.inward = nn.Linear(width, 3 * width)
        self.outward = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """x: [batch, length, width]; a number."""
        batch, length, width = x.shape
        split = self.inward(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = split.unbind()
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout, is_causal=self.causal)
        merged = y.transpose(1, 2).reshape(batch, length, width)
        return self.outward(merged).float().square().mean()


def pinned(backend: str) -> AbstractContextManager[Any]:
    """Attention by this backend of torch alone."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    names = {
        "flash": SDPBackend.FLASH_ATTENTION,
        "efficient": SDPBackend.EFFICIENT_ATTENTION,
        "cudnn": SDPBackend.CUDNN_ATTENTION,
        "math": SDPBackend.MATH,
    }
    return sdpa_kernel(names[backend]) if backend in names else nullcontext()


def operators_of(model: ORTModule) -> list[str]:
    """The fused attention operators of torch in the plan of its only piece."""
    text = training_piece(model._compiler).text("lowered")
    return sorted(set(re.findall(r"_scaled_dot_product_\w+", text)))


def _against_float64(
    module: nn.Module,
    x: Tensor,
    context: Context,
    around: Callable[[], AbstractContextManager[Any]],
    least: float = 2e-2,
) -> Row:
    wide = copy.deepcopy(module).double()
    exact = gradients(wide, wide, {"x": x.double()})[1]
    model = wrapped(module, context)
    with around():
        eager = gradients(module, module, {"x": x})[1]
        ours = gradients(model, model, {"x": x})[1]
    row = compare(eager, ours, exact, least)
    report = last_run_report(model)
    why = row["why"] or ("" if report["compiled"] else f"in eager: {report['eager_pieces']}")
    return row | {"operators": operators_of(model) if not why else [], "ok": not why, "why": why}


def _autocast(context: Context) -> Row:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(
                nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64), nn.LayerNorm(64)
            )

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast(context.device.type, torch.bfloat16):
                y = self.layers(x)
            return y.float().square().mean()

    torch.manual_seed(0)
    module = Net().to(context.device)
    # The float64 run leaves autocast, which does not change it, where it is.
    wide = copy.deepcopy(module.layers).double()
    x = torch.randn(128, 64, device=context.device)
    loss = wide(x.double()).square().mean()
    loss.backward()
    exact = {f"layers.{n}": p.grad for n, p in wide.named_parameters()}
    eager = gradients(module, module, {"x": x})[1]
    model = wrapped(module, context)
    ours = gradients(model, model, {"x": x})[1]
    row = compare(eager, ours, exact, 2e-2)
    report = last_run_report(model)
    return row if report["compiled"] else row | {"ok": False, "why": str(report["eager_pieces"])}


def _attention(backend: str, context: Context) -> Row:
    torch.manual_seed(0)
    module = Attention(256, 4).to(context.device, torch.bfloat16)
    x = torch.randn(2, 128, 256, device=context.device, dtype=torch.bfloat16)
    return _against_float64(module, x, context, partial(pinned, backend))


def _dropout(context: Context) -> Row:
    """Two steps draw other numbers, each step's backward those of its forward."""
    torch.manual_seed(0)
    module = Attention(256, 4, dropout=0.5).to(context.device, torch.bfloat16)
    model = wrapped(module, context)
    x = torch.randn(2, 128, 256, device=context.device, dtype=torch.bfloat16)
    losses = []
    for _ in range(2):
        model.zero_grad(set_to_none=True)
        loss = model(x)
        loss.backward()
        losses.append(float(loss))
    finite = all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)
    why = "" if losses[0] != losses[1] else "both steps drew the same numbers"
    why = why or ("" if finite else "gradients are not finite")
    return {"operators": operators_of(model), "ok": not why, "why": why}


def _odd_products(dtype: torch.dtype, count: int, context: Context) -> Row:
    """Sizes and types that cuBLASLt may refuse: what it refuses is computed otherwise."""

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            sizes = [7, 9, 1, 33, 16, 8]
            self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = F.gelu(layer(x), approximate="tanh")
            return x.float().square().sum()

    torch.manual_seed(0)
    module = Odd().to(context.device, dtype)
    x = torch.randn(count, 7, device=context.device, dtype=dtype)
    row = _against_float64(module, x, context, nullcontext, 5e-2)
    return row | {"why": f"{row['why']}, eager's {row['eager_error']:.2g}" if row["why"] else ""}


def _record_stream(context: Context) -> Row:
    """An output from one of torch's operators that a second stream reads after it was dropped."""

    class Pooled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cumprod(x, 1)

    model = wrapped(Pooled(), context)
    x = torch.full((4096, 1024), 1.0, device=context.device, requires_grad=True)
    for _ in range(2):
        y = model(x).detach()
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)
        total = y.sum()
    y.record_stream(side)
    del y
    overwriting = [torch.full((4096, 1024), 7.0, device=context.device) for _ in range(4)]
    torch.cuda.synchronize()
    del overwriting
    right = float(total) == 4096 * 1024
    return {"ok": right, "why": "" if right else "the memory was given out while it was read"}


def _plan_tests(context: Context) -> Row:
    """tests/devices/test_cuda_plans.py: some of its tests are skipped without a GPU."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    found = subprocess.run(
        [*command, "tests/devices/test_cuda_plans.py"],
        cwd=_ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    lines = found.stdout.strip().splitlines() or [found.stderr.strip()[-200:]]
    failed = [line[:160] for line in lines if line.startswith(("FAILED", "ERROR"))]
    right = found.returncode == 0
    return {"tests": lines[-1], "ok": right, "why": "" if right else "; ".join(failed[:6])}


_ROWS: dict[str, Callable[[Context], Row]] = {
    "autocast": _autocast,
    **{f"attention {backend}": partial(_attention, backend) for backend in BACKENDS},
    "attention dropout": _dropout,
    **{
        f"odd products {str(dtype).removeprefix('torch.')} {count}": partial(
            _odd_products, dtype, count
        )
        for dtype in (torch.bfloat16, torch.float16, torch.float32)
        for count in (1, 3, 64)
    },
    "record_stream": _record_stream,
    "plan tests": _plan_tests,
}

SMOKE = Part(
    "smoke",
    "what runs nowhere without a GPU: autocast, torch's attention and its gradients, refusals",
    lambda: list(_ROWS),
    lambda name, context: _ROWS[name](context),
    limit_s=240,
    row_s=2.0,
)
