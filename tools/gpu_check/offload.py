"""Part `offload`: saved activations in memory of the host, against keeping them on the GPU.

The bits of whole models must be equal and the peaks as planned, also with a graph that is kept and two runs
in flight; copies must run beside the steps. The last row keeps the outcome for this GPU and build:
ORTMODULE_OFFLOAD=auto follows it.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from benchmarks import models
from ortmodule_py import ORTModule, last_run_report
from ortmodule_py.base.machine_rates import measure
from ortmodule_py.base.offload import FEATURE
from ortmodule_py.report.plan_table import training_piece

from .outcome import outcome
from .part import Context, Part, Row
from .training import Gradients, budget_range, gradients, prepared, variables, wrapped

_MODELS = ("gpt", "gpt_fused", "bert", "llama", "t5", "vit", "resnet")
"""Each has values that are large enough for a copy."""
_OUTCOME = "outcome"
_LINK = "link"
_MOST_BESIDE = 1.25
"""Of the time of recomputing, or of so many times the step without a budget if that is less: these models are
small, so that launches decide, but a copy that the steps waited for would take far more."""


def _offloading(
    module: nn.Module, batch: models.Batch, step: Callable[..., Any], context: Context
) -> ORTModule:
    """The module with everything on the host that can be there."""
    with variables(ORTMODULE_OFFLOAD="1", ORTMODULE_MEMORY_OPT_CONFIG="None+:3:0"):
        listed = wrapped(copy.deepcopy(module), context)
        step(listed, batch)
        rows = training_piece(listed._compiler).memory()["rows"]
        ids = dict.fromkeys(row["cluster_id"] for row in rows if row["strategy"] == 3)
    config = ",".join(f"{name}:3:-1" for name in ids)
    with variables(ORTMODULE_OFFLOAD="1", ORTMODULE_MEMORY_OPT_CONFIG=config):
        return wrapped(module, context)


def _step_of(kind: str) -> Callable[..., Gradients]:
    def step(model: nn.Module, batch: models.Batch) -> Gradients:
        def run(**given: Any) -> torch.Tensor:
            enabled = kind == "autocast"
            with torch.autocast(
                next(iter(given.values())).device.type, torch.bfloat16, enabled=enabled
            ):
                loss: torch.Tensor = model(**given)
            return loss

        return gradients(run, model, batch)[1]

    return step


def _same_bits(name: str, kind: str, context: Context) -> Row:
    module, batch = prepared(name, context)
    step = _step_of(kind)
    kept, moved = wrapped(copy.deepcopy(module), context), _offloading(module, batch, step, context)
    why = ""
    first = step(kept, batch)
    for _ in range(3):  # the second one reuses the memory of the first
        # Both against the first step: what differs without offload as well is not its fault.
        for label, model in (("without offload ", kept), ("", moved)):
            found = step(model, batch)
            other = [n for n, g in first.items() if not torch.equal(g, found[n])]
            why = why or (f"{label}other bits: {', '.join(other[:4])}" if other else "")
    report = last_run_report(moved)
    loose = report["nondeterministic_kernels"]
    why = "" if loose else why
    if report["host_bytes"] == 0:
        why = "nothing was kept on the host"
    if report["measured_peak_bytes"] > report["planned_peak_bytes"]:
        why = why or f"peak {report['measured_peak_bytes']}, planned {report['planned_peak_bytes']}"
    before = last_run_report(kept)["planned_peak_bytes"]
    mib = {"MiB": report["planned_peak_bytes"] / 2**20, "before": before / 2**20}
    return {**mib, "host MiB": report["host_bytes"] / 2**20, "ok": not why, "why": why}


def _in_flight(context: Context) -> Row:
    """Two forwards before the first backward, of which one runs twice."""
    module, batch = prepared("gpt", context)
    step = _step_of("float32")
    kept, moved = wrapped(copy.deepcopy(module), context), _offloading(module, batch, step, context)
    found = []
    for model in (kept, moved):
        model.zero_grad(set_to_none=True)
        torch.manual_seed(7)
        first, second = model(**batch), model(**batch)
        first.backward(retain_graph=True)
        second.backward()
        first.backward()
        found.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    same = all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    return {"ok": same, "why": "" if same else "other bits"}


def times(models_: list[ORTModule], batch: models.Batch) -> Iterator[float]:
    """Milliseconds of a step of each, the best of three rounds in turn."""
    best = [float("inf")] * len(models_)
    for round_ in range(4):
        for at, model in enumerate(models_):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(3):
                model.zero_grad(set_to_none=True)
                model(**batch).backward()
            torch.cuda.synchronize()
            if round_ > 0:
                best[at] = min(best[at], (time.perf_counter() - begin) * 1e3 / 3)
    yield from best


def _beside(name: str, context: Context) -> Row:
    """A budget at the middle of the reachable peaks: fetching from the host against recomputing."""
    module, batch = prepared(name, context)
    with variables(ORTMODULE_OFFLOAD="0"):
        peak, least = budget_range(module, batch, context)
    budget = f"activations:{(peak + least) // 2}"
    plain = wrapped(copy.deepcopy(module), context)
    with variables(ORTMODULE_OFFLOAD="0"):
        recomputing = wrapped(copy.deepcopy(module), context, memory_budget=budget)
    with variables(ORTMODULE_OFFLOAD="1"):
        moved = wrapped(module, context, memory_budget=budget)
    ms = list(times([plain, recomputing, moved], batch))
    report = last_run_report(moved)
    ratio = ms[2] / min(ms[1], ms[0] * _MOST_BESIDE)
    why = (
        ""
        if ratio <= _MOST_BESIDE
        else f"{ratio:.2f} of the allowed time: the steps wait for copies"
    )
    return {
        "ms": ms[2],
        "recomputing": ms[1],
        "without": ms[0],
        "host MiB": report["host_bytes"] / 2**20,
        "ok": not why,
        "why": why,
    }


def _link(context: Context) -> Row:
    rates = measure(context.device)
    found = {
        "to host GB/s": rates.to_host_bytes_per_us / 1e3,
        "to device GB/s": rates.to_device_bytes_per_us / 1e3,
    }
    slow = min(found.values()) < 1
    return {**found, "ok": not slow, "why": "slower than 1 GB/s" if slow else ""}


_SPEED = ("gpt beside", "bert beside")
_FLIGHT = "in flight"


def _rows() -> list[str]:
    kinds = [f"{name} {kind}" for name in _MODELS for kind in ("float32", "autocast")]
    return [_LINK, *kinds, _FLIGHT, *_SPEED, _OUTCOME]


def _run(row: str, context: Context) -> Row:
    if row == _OUTCOME:
        return outcome(FEATURE, set(_rows()) - {_OUTCOME}, context)
    if row == _LINK:
        return _link(context)
    if row == _FLIGHT:
        return _in_flight(context)
    name, _, kind = row.partition(" ")
    return _beside(name, context) if row in _SPEED else _same_bits(name, kind, context)


OFFLOAD = Part(
    "offload",
    "saved activations in memory of the host: the same bits, planned peaks, copies beside; turns it on",
    _rows,
    _run,
    limit_s=180,
    row_s=3.0,
    timed=True,
)
