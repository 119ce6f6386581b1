"""Part `generated`: pointwise groups as generated code, against the interpreter.

The bits of whole models must be equal, and memory-bound groups no slower. The last row keeps the
outcome for this GPU and build: ORTMODULE_GENERATED_CODE=auto follows it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from benchmarks import models
from ortmodule_py import _C, ORTModule, last_run_report
from ortmodule_py.base.generated_code import FEATURE

from .kernels import CASES
from .outcome import outcome
from .part import EVEN, Context, Part, Row
from .profile import profiled
from .training import Gradients, gradients, variables, wrapped

_MODELS = ("mlp", "gpt", "bert", "llama", "t5", "vit", "resnet")
_GROUPS = ("dropout + residual", "silu * up bf16", "bias gelu bf16", "cast to bf16")
_OUTCOME = "outcome"
_STEPS = 3


def _model(module: nn.Module, setting: str, context: Context) -> ORTModule:
    with variables(ORTMODULE_GENERATED_CODE=setting):
        return wrapped(module, context)


def _steps(run: Callable[..., Any], model: nn.Module, batch: models.Batch) -> Gradients:
    """Gradients of the last of some steps; its groups are compiled by then."""
    for _ in range(_STEPS):
        found = gradients(run, model, batch)[1]
        _C.finish_generated_code()
    return found


def _counts() -> dict[str, Any]:
    return _C.generated_code_counts() or {}


def _same_bits(name: str, kind: str, context: Context) -> Row:
    base = models.make(name)
    module = base.module.to(context.device)
    batch = {k: v.to(context.device) for k, v in base.batch(base.batch_size).items()}

    def step(model: ORTModule, **given: torch.Tensor) -> torch.Tensor:
        with torch.autocast(context.device.type, torch.bfloat16, enabled=kind == "autocast"):
            loss: torch.Tensor = model(**given)
        return loss

    models_ = [_model(module, setting, context) for setting in ("0", "1")]
    before = _counts()
    exact, found = (_steps(partial(step, model), model, batch) for model in models_)
    after = _counts()
    loose = last_run_report(models_[1])["nondeterministic_kernels"]
    other = [n for n, g in exact.items() if not torch.equal(g, found[n])]
    why = f"other bits: {', '.join(other[:4])}" if other and not loose else ""
    if not after or after["launches"] == before.get("launches", 0):
        why = why or "no generated code was launched"
    if after.get("failed"):
        why = f"{after['failed']} groups did not compile: {after['failure'][:200]}"
    return {"counts": list(after.values())[:-1], "loose": loose, "ok": not why, "why": why}


def _speed(name: str, context: Context) -> Row:
    module, args = CASES[name].make(str(context.device))
    us = {}
    for setting in ("0", "1"):
        model = _model(copy.deepcopy(module), setting, context)
        for _ in range(2):
            model(*args)
            _C.finish_generated_code()
        us[setting] = sum(k.us for k in profiled(partial(model, *args), 10))
    ratio = us["1"] / us["0"]
    why = "" if ratio <= 1 + EVEN else "slower than the interpreter"
    rate = CASES[name].forward_bytes * args[0].numel() / us["1"] / 1000
    return {"us": us["1"], "GB/s": rate, "against_interpreted": ratio, "ok": not why, "why": why}


def _rows() -> list[str]:
    kinds = [f"{name} {kind}" for name in _MODELS for kind in ("float32", "autocast")]
    return [*kinds, *_GROUPS, _OUTCOME]


def _run(row: str, context: Context) -> Row:
    if row == _OUTCOME:
        return outcome(FEATURE, set(_rows()) - {_OUTCOME}, context)
    if row in _GROUPS:
        return _speed(row, context)
    name, _, kind = row.partition(" ")
    return _same_bits(name, kind, context)


GENERATED = Part(
    "generated",
    "pointwise groups as generated code: the interpreter's bits, and its speed; turns it on",
    _rows,
    _run,
    limit_s=180,
    row_s=3.0,
    timed=True,
)
