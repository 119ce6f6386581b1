"""Parts `kernels` and `products`: our kernels in GB/s, products and attention in TFLOP/s.

Times are those of the kernels themselves, from torch's profiler, all kernels of a pass together. Each
pass reads other buffers than the last, several times what the L2 cache holds. Bytes are the least that
the pass can move: each operand and each result once.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ortmodule_py import _C, ORTModule, last_run_report

from .part import EVEN, Context, Part, Row
from .profile import KernelTime, as_json, profiled, profiled_apart
from .smoke import BACKENDS, operators_of, pinned
from .training import variables, wrapped

_ROWS, _WIDTH = 65536, 1024
_CLASSES = 50257
_SETS = 3
"""Buffers to go through in turn: of 128 MiB and more each, where L2 has 50."""
_BEST = 0.9
"""The part of the memory's rate that a plain copy gets on an H100."""
_TOLERATED = 0.8


class _Of(nn.Module):
    """A function of tensors as a module; its parameters come before the arguments."""

    def __init__(self, function: Callable[..., Tensor], *parameters: Tensor) -> None:
        super().__init__()
        self.function = function
        # By name: Dynamo of torch 2.11 does not unpack a ParameterList.
        named = [nn.Parameter(p) for p in parameters] + [None, None]
        self.weight, self.bias, *_ = named

    def forward(self, *args: Tensor) -> Tensor:
        given = [p for p in (self.weight, self.bias) if p is not None]
        return self.function(*given, *args)


@dataclass(frozen=True)
class Case:
    """A function with the bytes that an element of its largest operand costs in each pass, and the
    part of the memory's rate that is expected of our kernels on an H100 (None: not known)."""

    make: Callable[..., tuple[_Of, list[Tensor]]]
    """Takes the device, and a number by which the first size of each operand is divided."""
    forward_bytes: float
    backward_bytes: float = 0.0
    forward_share: float | None = None
    backward_share: float | None = None


def _of(
    function: Callable[..., Tensor],
    *dtypes: torch.dtype,
    shape: tuple[int, ...] = (_ROWS, _WIDTH),
    parameters: tuple[torch.dtype, ...] = (),
) -> Callable[..., tuple[_Of, list[Tensor]]]:
    """Of tensors of these types, after parameters as long as a row."""

    def make(device: str, divisor: int = 1) -> tuple[_Of, list[Tensor]]:
        sizes = (max(shape[0] // divisor, 1), *shape[1:])
        given = [torch.randn(_WIDTH, device=device, dtype=d) for d in parameters]
        args = [torch.randn(sizes, device=device, dtype=d) for d in dtypes]
        return _Of(function, *given), args

    return make


def _with_numbers(
    function: Callable[..., Tensor],
    shape: tuple[int, int],
    dim: int,
    count: int,
    dtype: torch.dtype,
) -> Callable[..., tuple[_Of, list[Tensor]]]:
    """Of a floating point tensor and `count` positions in a dimension of it."""

    def make(device: str, divisor: int = 1) -> tuple[_Of, list[Tensor]]:
        sizes = (shape[0] // divisor, shape[1])
        numbers = torch.randint(0, sizes[dim], (count // divisor,), device=device)
        return _Of(function), [torch.randn(sizes, device=device, dtype=dtype), numbers]

    return make


def _rms(weight: Tensor, x: Tensor) -> Tensor:
    return F.rms_norm(x, (_WIDTH,), weight)


def _heads(x: Tensor) -> Tensor:
    return x.view(64, -1, 16, 64).transpose(1, 2).contiguous()


_F32, _BF16 = torch.float32, torch.bfloat16

CASES: dict[str, Case] = {
    "add bf16": Case(_of(lambda a, b: a + b, _BF16, _BF16), 6, 0, 0.45),
    "dropout + residual": Case(
        _of(lambda x, r: F.dropout(x, 0.1) + r, _BF16, _F32), 10, 6, 0.45, 0.45
    ),
    "silu * up bf16": Case(_of(lambda g, u: F.silu(g) * u, _BF16, _BF16), 6, 10, 0.25, 0.25),
    "bias gelu bf16": Case(
        _of(lambda b, x: F.gelu(x + b), _BF16, parameters=(_BF16,)), 4, 6, 0.20, 0.15
    ),
    "cast to bf16": Case(_of(lambda x: x.bfloat16(), _F32), 6, 6, 0.70),
    "softmax f32": Case(_of(lambda x: x.softmax(-1), _F32), 8, 12, 0.60),
    "softmax bf16": Case(_of(lambda x: x.softmax(-1), _BF16), 4, 6, 0.35),
    "layer norm f32": Case(
        _of(lambda w, b, x: F.layer_norm(x, (_WIDTH,), w, b), _F32, parameters=(_F32, _F32)),
        8,
        12,
        0.80,
        0.45,
    ),
    "rms norm f32": Case(_of(_rms, _F32, parameters=(_F32,)), 8, 12, 0.80, 0.45),
    "cross entropy f32": Case(
        _with_numbers(F.cross_entropy, (2048, _CLASSES), 1, 2048, _F32), 4, 8, 0.75
    ),
    "cross entropy bf16": Case(
        _with_numbers(F.cross_entropy, (2048, _CLASSES), 1, 2048, _BF16), 2, 4, 0.45
    ),
    "embedding": Case(
        _with_numbers(lambda t, i: F.embedding(i, t), (_CLASSES, _WIDTH), 0, _ROWS, _F32),
        10.4,  # 65,536 rows are read and written, for each of 50,257
        9.2,  # and read in backward, which writes all rows
        0.75,
        0.40,
    ),
    "column sums bf16": Case(_of(lambda x: x.sum(0), _BF16), 2, 0, 0.35),
    "row sums bf16": Case(_of(lambda x: x.sum(1), _BF16), 2, 0, 0.55),
    "transpose bf16": Case(_of(lambda x: x.t().contiguous(), _BF16), 4, 0, 0.55),
    "heads bf16": Case(_of(_heads, _BF16), 4, 0, 0.75),
    "max pool bf16": Case(
        _of(lambda x: F.max_pool2d(x, 3, 2, 1), _BF16, shape=(128, 64, 112, 112)),
        2.75,  # a result and a place for every fourth element
        2.75,
        0.25,
    ),
    "max pool channels last": Case(
        _of(
            lambda x: F.max_pool2d(x.to(memory_format=torch.channels_last), 3, 2, 1),
            _BF16,
            shape=(128, 64, 112, 112),
        ),
        6.75,  # the change of the layout too
        0,
    ),
}


def _copy_rate(device: torch.device) -> float:
    """GB/s of torch's own copy between buffers of 1 GiB."""
    a, b = (torch.empty(2**28, device=device) for _ in range(2))
    kernels = profiled(lambda: b.copy_(a), 5)
    return 2 * a.nbytes / sum(k.us for k in kernels) / 1000


def _passes(
    model: Any, sets: list[list[Tensor]], wants_gradient: bool
) -> tuple[list[KernelTime], list[KernelTime]]:
    """The kernels of forward and those of backward, each a mean over the sets."""
    results: list[list[Tensor]] = []

    def forward() -> None:
        results.append([model(*args) for args in sets])

    def backward() -> None:
        for y, args in zip(results.pop(), sets, strict=True):
            wanted = [t for t in (*args, *model.parameters()) if t.requires_grad]
            torch.autograd.grad(y, wanted, ones)

    if not wants_gradient:
        return _mean(profiled(forward, 1)), []
    ones = torch.ones_like(model(*sets[0]))
    first, second = profiled_apart([forward, backward])
    return _mean(first), _mean(second)


def _compile_groups(model: Any, args: list[Tensor]) -> None:
    """A step, after which its groups are code of their own, where that is on."""
    y = model(*args)
    if y.requires_grad:
        wanted = [t for t in (*args, *model.parameters()) if t.requires_grad]
        torch.autograd.grad(y, wanted, torch.ones_like(y))
    _C.finish_generated_code()


def _mean(kernels: list[KernelTime]) -> list[KernelTime]:
    return [KernelTime(k.name, k.launches / _SETS, k.us / _SETS) for k in kernels]


def _bandwidth(name: str, context: Context) -> Row:
    known = context.known.get("copy", {}).get("GB/s")
    copy = _copy_rate(context.device) if name == "copy" or known is None else known
    if name == "copy":
        return {"GB/s": copy, "ok": True, "why": ""}
    torch.manual_seed(0)
    case = CASES[name]
    module, _ = case.make(str(context.device))
    sets = [case.make(str(context.device))[1] for _ in range(_SETS)]
    for args in sets:
        for tensor in args:
            tensor.requires_grad_(tensor.is_floating_point() and case.backward_bytes > 0)
    model = wrapped(module, context)
    _compile_groups(model, sets[0])
    forward, backward = _passes(model, sets, case.backward_bytes > 0)
    elements = max(t.numel() for t in sets[0])
    row: Row = {}
    slow = []
    for label, kernels, each, share in (
        ("forward", forward, case.forward_bytes, case.forward_share),
        ("backward", backward, case.backward_bytes, case.backward_share),
    ):
        if not kernels:
            continue
        us = sum(k.us for k in kernels)
        rate = each * elements / us / 1000
        of_copy = rate / copy
        row |= {f"{label}_us": us, f"{label}_GB/s": rate, f"{label}_of_copy": of_copy}
        row[f"{label}_launches"] = sum(k.launches for k in kernels)
        if share is not None and of_copy < _TOLERATED * share / _BEST:
            slow.append(f"{label} at {of_copy:.2f} of a copy, {share / _BEST:.2f} expected")
    report = last_run_report(model)
    why = "; ".join(slow) if report["compiled"] else f"in eager: {report['eager_pieces']}"
    return row | {"kernels": as_json(forward + backward), "ok": not why, "why": why}


# ---- products ------------------------------------------------------------------------------------
_EPILOGUES = "fuse_gemm_gelu,fuse_weight_bias_grad"
"""Passes that hand what follows a product to cuBLASLt."""
_SHAPES = {"4096x1024->4096": (4096, 1024, 4096), "8192x4096->1024": (8192, 4096, 1024)}


class _Layer(nn.Module):
    def __init__(self, inner: int, columns: int, gelu: bool) -> None:
        super().__init__()
        self.linear, self.gelu = nn.Linear(inner, columns), gelu

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        return F.gelu(y, approximate="tanh") if self.gelu else y


class _LossHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(_WIDTH, _CLASSES, bias=False)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.linear(x), labels)


def _step_us(model: Any, args: list[Tensor]) -> tuple[float, list[KernelTime]]:
    def step() -> None:
        y = model(*args)
        wanted = [t for t in (*args, *model.parameters()) if t.requires_grad]
        torch.autograd.grad(y, wanted, torch.ones_like(y))

    for _ in range(2):
        step()
    kernels = [k for k in profiled(step, 5) if not re.search("fill", k.name.lower())]
    return sum(k.us for k in kernels), kernels


def _epilogue(shape: tuple[int, int, int], gelu: bool, context: Context) -> Row:
    """Forward and backward with cuBLASLt's epilogues and without them."""
    rows, inner, columns = shape
    module = _Layer(inner, columns, gelu).to(context.device, _BF16)
    x = torch.randn(rows, inner, device=context.device, dtype=_BF16, requires_grad=True)
    fused, kernels = _step_us(wrapped(module, context), [x])
    with variables(ORTMODULE_DISABLE_PASSES=_EPILOGUES):
        apart, others = _step_us(wrapped(module, context), [x])
    flops = 6.0 * rows * inner * columns
    return {
        "fused_us": fused,
        "apart_us": apart,
        "TFLOP/s": flops / min(fused, apart) / 1e6,
        "better": "fused" if fused <= apart else "apart",
        "kernels": as_json(kernels) + as_json(others),
        "ok": True,
        "why": "",
    }


def _loss_head(context: Context) -> Row:
    rows = 8192
    module = _LossHead().to(context.device, _BF16)
    x = torch.randn(rows, _WIDTH, device=context.device, dtype=_BF16, requires_grad=True)
    labels = torch.randint(0, _CLASSES, (rows,), device=context.device)
    us, kernels = _step_us(wrapped(module, context), [x, labels])
    eager, _ = _step_us(module, [x, labels])
    flops = 6.0 * rows * _WIDTH * _CLASSES
    row: Row = {"us": us, "eager_us": eager, "TFLOP/s": flops / us / 1e6}
    why = "" if us <= (1 + EVEN) * eager else f"eager takes {eager / us:.2f} of its time"
    return row | {"kernels": as_json(kernels), "ok": not why, "why": why}


class _Attend(nn.Module):
    def forward(self, qkv: Tensor) -> Tensor:
        """qkv: [batch, length, 3, heads, width]; heads merged, as a layer does it."""
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind()
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return y.transpose(1, 2).reshape(*qkv.shape[:2], -1)


def _attention(backend: str, context: Context) -> Row:
    batch, length, heads, width = 8, 1024, 16, 64
    shape = (batch, length, 3, heads, width)
    qkv = torch.randn(shape, device=context.device, dtype=_BF16, requires_grad=True)
    with pinned(backend):
        model = wrapped(_Attend(), context)
        us, kernels = _step_us(model, [qkv])
        eager, _ = _step_us(_Attend(), [qkv])
    flops = 7.0 * batch * heads * length * length * width  # causal: half of 4 + 10
    copies = sum(k.launches for k in kernels if "copy" in k.name.lower())
    found = operators_of(model) if isinstance(model, ORTModule) else []
    row: Row = {"us": us, "eager_us": eager, "TFLOP/s": flops / us / 1e6, "copies": copies}
    why = "" if us <= (1 + EVEN) * eager else f"eager takes {eager / us:.2f} of its time"
    return row | {"operators": found, "kernels": as_json(kernels), "ok": not why, "why": why}


_PRODUCTS: dict[str, Callable[[Context], Row]] = {
    **{f"linear {label}": partial(_epilogue, s, False) for label, s in _SHAPES.items()},
    **{f"gelu {label}": partial(_epilogue, s, True) for label, s in _SHAPES.items()},
    "loss head": _loss_head,
    **{f"attention {backend}": partial(_attention, backend) for backend in BACKENDS},
}

KERNELS = Part(
    "kernels",
    "our kernels in GB/s and as a part of a copy's, forward and backward",
    lambda: ["copy", *CASES],
    _bandwidth,
    limit_s=300,
    row_s=1.5,
    timed=True,
)
PRODUCTS = Part(
    "products",
    "cuBLASLt's epilogues on and off, the loss head, attention by each of torch's backends",
    lambda: list(_PRODUCTS),
    lambda name, context: _PRODUCTS[name](context),
    limit_s=180,
    row_s=2.0,
    timed=True,
)
