"""Part `budgets`: what the plan predicts against what torch's allocator counts."""

from __future__ import annotations

import copy
from typing import Any

import torch

from benchmarks import models
from ortmodule_py import ORTModule
from ortmodule_py.report.plan_table import training_piece

from .part import Context, Part, Row
from .training import budget_range, wrapped

_MODELS = ("gpt", "bert", "t5", "vit", "llama", "resnet")
_BUDGETS = 8
_UNSPLIT_BYTES = 2**20
"""The caching allocator leaves up to so much of a large block unsplit, and counts it as given out."""


def _step(model: ORTModule, batch: models.Batch) -> dict[str, int]:
    """Bytes of one step above those at its start, as the allocator counts them: those that were
    asked for, those that it gave out, and those that it holds."""
    torch.manual_seed(5)
    model.zero_grad(set_to_none=True)
    one = torch.ones((), device=next(iter(batch.values())).device)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    start = torch.cuda.memory_stats()
    model(**batch).backward(one)
    torch.cuda.synchronize()
    end = torch.cuda.memory_stats()
    kinds = {
        "requested": "requested_bytes.all",
        "allocated": "allocated_bytes.all",
        "reserved": "reserved_bytes.all",
    }
    return {name: end[f"{kind}.peak"] - start[f"{kind}.current"] for name, kind in kinds.items()}


def _facts(model: ORTModule) -> dict[str, Any]:
    facts: dict[str, Any] = training_piece(model._compiler).memory()
    return facts


def _run(name: str, context: Context) -> Row:
    """Eight budgets from the model's own peak to the least that it reaches."""
    base = models.make(name)
    module = base.module.to(context.device)
    batch = {k: v.to(context.device) for k, v in base.batch(base.batch_size).items()}
    first = wrapped(copy.deepcopy(module), context)
    for _ in range(2):  # which convolutions are ATen's turns out in a run
        _step(first, batch)
    peak, least = budget_range(module, batch, context)
    rows: list[dict[str, int]] = []
    overruns: list[str] = []
    for i in range(_BUDGETS):
        budget = peak - (peak - least) * i // (_BUDGETS - 1)
        model = wrapped(copy.deepcopy(module), context, memory_budget=f"activations:{budget}")
        for _ in range(2):  # libraries take their own workspaces in the first step
            _step(model, batch)
        measured = _step(model, batch)
        predicted = _facts(model)["after"]["peak_bytes"]
        rows.append({"budget": budget, "predicted": predicted, **measured})
        if measured["requested"] > budget:
            overruns.append(f"{measured['requested']:,} bytes under a budget of {budget:,}")
    worst = max(abs(r["requested"] / r["predicted"] - 1) for r in rows)
    slack = max(r["allocated"] - r["requested"] for r in rows)
    return {
        "worst_error": worst,
        "unsplit_blocks": -(-slack // _UNSPLIT_BYTES),
        "most_reserved": max(r["reserved"] / r["predicted"] for r in rows),
        "budgets": rows,
        "ok": not overruns and worst <= 0.005,
        "why": "; ".join(overruns) or ("" if worst <= 0.005 else f"off by {worst:.2%}"),
    }


BUDGETS = Part(
    "budgets",
    f"predicted against measured peak at {_BUDGETS} budgets; an overrun fails",
    lambda: list(_MODELS),
    _run,
    limit_s=300,
    row_s=40.0,
)
