"""Part `epilogues`: a bias's gradient and Gelu's operand by cuBLASLt's epilogue, against kernels of their own.

Gradients must be as near to float64 as eager's in both forms, and with the choice by time the bits must be
those of a recomputing and of a replayed step. Rows of models time all their problems in both forms, and keep
the faster one for later processes. The last row keeps the outcome for this GPU and build:
ORTMODULE_PRODUCT_EPILOGUES=auto follows it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ortmodule_py import _C, ORTModule, last_run_report
from ortmodule_py.base.product_epilogues import FEATURE

from .outcome import outcome
from .part import Context, Part, Row
from .speed import MODELS, Trained
from .training import compare, gradients, variables, wrapped

Times = Mapping[str, tuple[float, float, bool]]
"""By problem: microseconds with and without the epilogue, and whether it is used."""

_TYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
_MODELS = ("gpt2-medium", "bert-large", "vit-large")
_TANH = "gpt2 block"
"""The models above use the exact form of Gelu, which has no epilogue."""
_OUTCOME = "outcome"


class _Feedforward(nn.Module):
    """Layers of a transformer of GPT-2's width, with its Gelu."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.up = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(layers))
        self.down = nn.ModuleList(nn.Linear(4 * width, width) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        """Mean square of the last layer."""
        for norm, up, down in zip(self.norms, self.up, self.down, strict=True):
            x = x + down(F.gelu(up(norm(x)), approximate="tanh"))
        return x.float().square().mean()


def times_table(times: Times) -> list[str]:
    """Lines for the problems, those first where the epilogue loses most."""
    lines = [f"{'epilogue us':>11} {'parts us':>9} {'used':8}  problem"]
    for problem, (epilogue, parts, used) in sorted(
        times.items(), key=lambda item: item[1][1] - item[1][0]
    ):
        form = "epilogue" if used else "parts"
        lines.append(f"{epilogue:11.1f} {parts:9.1f} {form:8}  {problem}")
    return lines


def _measured(step: Callable[[], None]) -> Row:
    """A row of the problems that `step` has."""
    before: Times = _C.product_epilogues()["times"]
    step()
    facts = _C.product_epilogues()
    times: Times = facts["times"]
    new = {problem: found for problem, found in times.items() if problem not in before}
    gains = [epilogue - parts for epilogue, parts, used in times.values() if not used]
    row = {"problems": len(times), "new": len(new), "parts": len(gains), "gain_us": sum(gains)}
    why = "" if times else f"nothing was measured, or it could not be kept in {facts.get('file')}"
    return {**row, "lines": times_table(times), "ok": not why, "why": why}


def _of_model(name: str, context: Context) -> Row:
    """A step under autocast, whose plans measure."""
    torch.manual_seed(0)
    with context.device:
        module, batch = MODELS[name]()
    module.train()
    with variables(ORTMODULE_PRODUCT_EPILOGUES="measure"):
        trained = Trained(module, "ours")
    return _measured(lambda: trained.step(batch))


def _of_block(context: Context) -> Row:
    module = _Feedforward(1024, 1).to(context.device)
    x = torch.randn(8192, 1024, device=context.device)
    with variables(ORTMODULE_PRODUCT_EPILOGUES="measure"):
        model = wrapped(module, context)

    def step() -> None:
        with torch.autocast(context.device.type, torch.bfloat16):
            loss = model(x)
        loss.backward()

    return _measured(step)


def _right(kind: str, context: Context) -> Row:
    torch.manual_seed(0)
    wide = _Feedforward(128, 2).to(context.device, torch.float64)
    x = torch.randn(512, 128, device=context.device, dtype=torch.float64)
    exact = gradients(wide, wide, {"x": x})[1]
    module, batch = copy.deepcopy(wide).to(_TYPES[kind]), {"x": x.to(_TYPES[kind])}
    eager = gradients(module, module, batch)[1]
    why, row = "", Row()
    for setting in ("0", "1", "measure"):
        with variables(ORTMODULE_PRODUCT_EPILOGUES=setting):
            model = wrapped(module, context)
        ours = gradients(model, model, batch)[1]
        found = compare(eager, ours, exact, 2e-2 if kind != "float32" else 1e-3)
        row |= {f"error_{setting}": found["error"], "eager_error": found["eager_error"]}
        why = why or (f"{setting}: {found['why']}" if found["why"] else "")
    for label, options in (
        ("again", {}),
        ("at level 1", {"ORTMODULE_MEMORY_OPT_LEVEL": "1"}),
        ("replayed", {"ORTMODULE_CUDA_GRAPH": "1"}),
    ):
        with variables(ORTMODULE_PRODUCT_EPILOGUES="measure", **options):
            other = wrapped(module, context)
        bits = [gradients(other, other, batch)[1] for _ in range(3)][-1]
        differ = [n for n, g in ours.items() if not torch.equal(g, bits[n])]
        why = why or (f"{label}: other bits: {', '.join(differ[:4])}" if differ else "")
        why = why or _in_eager(other)
    return row | {"ok": not why, "why": why}


def _in_eager(model: ORTModule) -> str:
    report = last_run_report(model)
    return "" if report["compiled"] else f"in eager: {report['eager_pieces']}"


def _rows() -> list[str]:
    return [*_TYPES, _TANH, *_MODELS, _OUTCOME]


def _run(row: str, context: Context) -> Row:
    if row == _OUTCOME:
        return outcome(FEATURE, set(_rows()) - {_OUTCOME}, context)
    try:
        if row in _TYPES:
            return _right(row, context)
        return _of_block(context) if row == _TANH else _of_model(row, context)
    finally:
        _C.use_product_epilogues("always")


EPILOGUES = Part(
    "epilogues",
    "cuBLASLt's epilogues against kernels of their own: gradients, bits, all problems' times; turns it on",
    _rows,
    _run,
    limit_s=180,
    row_s=5.0,
    timed=True,
)
