"""Parts `parity`, `precision`, `exactness` and `graphs`: whole training steps against eager PyTorch."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from benchmarks import models
from ortmodule_py import DebugOptions, LogLevel, ORTModule, last_run_report
from ortmodule_py.report.plan_table import training_piece

from .part import Context, Part, Row

Gradients = dict[str, torch.Tensor]


@contextmanager
def variables(**values: str) -> Iterator[None]:
    """Environment variables for the construction of a module."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def wrapped(module: nn.Module, context: Context, **options: Any) -> ORTModule:
    """A quiet ORTModule over a copy of the module."""
    with variables(ORTMODULE_CUDA_EMULATION="1" if context.emulated else "0"):
        return ORTModule(copy.deepcopy(module), DebugOptions(LogLevel.ERROR), **options)


def gradients(
    run: Callable[..., torch.Tensor], module: nn.Module, batch: models.Batch
) -> tuple[torch.Tensor, Gradients]:
    """Loss and gradients of one step from a fixed seed."""
    torch.manual_seed(5)
    module.zero_grad(set_to_none=True)
    loss = run(**batch)
    loss.backward()
    grads = {n: p.grad.clone() for n, p in module.named_parameters() if p.grad is not None}
    return loss.detach(), grads


def _error(found: Gradients, exact: Gradients) -> float:
    """The norm of all differences, as a part of that of all gradients. Not the largest difference:
    where a rounding moves the operand of a ReLU over zero, the gradients of that unit are others."""
    square = sum(float((found[n].double() - g.double()).square().sum()) for n, g in exact.items())
    whole = sum(float(g.double().square().sum()) for g in exact.values())
    return float((square / whole) ** 0.5)


def prepared(name: str, context: Context, **options: Any) -> tuple[nn.Module, models.Batch]:
    """A model of the benchmarks and a batch for it, on the device."""
    base = models.make(name, **options)
    batch = {key: value.to(context.device) for key, value in base.batch(base.batch_size).items()}
    return base.module.to(context.device), batch


def _uncompiled(model: ORTModule) -> str:
    report = last_run_report(model)
    return "" if report["compiled"] else f"in eager: {report['eager_pieces']}"


def compare(eager: Gradients, ours: Gradients, exact: Gradients, least: float) -> Row:
    """A row: ours may be twice as far off as eager, or by `least`."""
    theirs, mine = _error(eager, exact), _error(ours, exact)
    allowed = max(2 * theirs, least)
    why = "" if mine <= allowed else f"error {mine:.2g}, allowed {allowed:.2g}"
    return {"eager_error": theirs, "error": mine, "ok": not why, "why": why}


def _parity(name: str, context: Context) -> Row:
    """Gradients in float32 against float64, at most twice as far off as eager's own."""
    module, batch = prepared(name, context, dropout=0.0)
    wide = copy.deepcopy(module).double()
    wide_batch = {k: v.double() if v.is_floating_point() else v for k, v in batch.items()}
    exact = gradients(wide, wide, wide_batch)[1]
    eager = gradients(module, module, batch)[1]
    model = wrapped(module, context)
    ours = gradients(model, model, batch)[1]
    row = compare(eager, ours, exact, 1e-3)
    missing = _uncompiled(model)
    return row | ({"ok": False, "why": missing} if missing else {})


_PRECISIONS = [
    f"{name} {kind}"
    for name in ("gpt_fused", "bert", "llama", "resnet")
    for kind in ("float16", "bfloat16", "module-bfloat16")
]


def _precision(row_name: str, context: Context) -> Row:
    """Autocast with a scaled loss, and a module in bfloat16, against eager in float64."""
    name, _, kind = row_name.partition(" ")
    module, batch = prepared(name, context, dropout=0.0)
    wide = copy.deepcopy(module).double()
    wide_batch = {k: v.double() if v.is_floating_point() else v for k, v in batch.items()}
    exact = gradients(wide, wide, wide_batch)[1]
    if kind.startswith("module"):
        module = module.bfloat16()
        batch = {k: v.bfloat16() if v.is_floating_point() else v for k, v in batch.items()}
    scale = 2.0**10 if kind == "float16" else 1.0

    def step(run: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        dtype = torch.float16 if kind == "float16" else torch.bfloat16
        narrow: Any = (
            nullcontext()
            if kind.startswith("module")
            else torch.autocast(context.device.type, dtype)
        )

        def scaled(**given: torch.Tensor) -> torch.Tensor:
            with narrow:
                loss = run(**given)
            return loss * scale

        return scaled

    eager = gradients(step(module), module, batch)[1]
    model = wrapped(module, context)
    ours = gradients(step(model), model, batch)[1]
    unscaled = [{n: g / scale for n, g in found.items()} for found in (eager, ours)]
    row = compare(*unscaled, exact, 2e-2)
    missing = _uncompiled(model)
    return row | ({"ok": False, "why": missing} if missing else {})


def budget_range(module: nn.Module, batch: models.Batch, context: Context) -> tuple[int, int]:
    """The bytes of activations of a step as it is, and the least that it reaches."""
    model = wrapped(module, context, memory_budget="activations:100%")
    gradients(model, model, batch)
    facts = training_piece(model._compiler).memory()
    return facts["before"]["peak_bytes"], facts["minimum_bytes"]


def _exactness(name: str, context: Context) -> Row:
    """Gradients at levels 1 and 2, and under a tight budget, bit by bit those of level 0."""
    module, batch = prepared(name, context)
    reference: Gradients | None = None
    differing: list[str] = []
    nondeterministic: list[str] = []
    settings: list[tuple[str, dict[str, str], dict[str, Any]]] = [
        (f"level {level}", {"ORTMODULE_MEMORY_OPT_LEVEL": str(level)}, {}) for level in range(3)
    ]
    peak, least = budget_range(module, batch, context)
    settings.append(("budget", {}, {"memory_budget": f"activations:{max(least, peak * 3 // 4)}"}))
    for label, environment, options in settings:
        with variables(**environment):
            model = wrapped(module, context, **options)
        found = gradients(model, model, batch)[1]
        nondeterministic = last_run_report(model)["nondeterministic_kernels"]
        if reference is None:
            reference = found
        differing += [f"{label} {n}" for n in found if not torch.equal(found[n], reference[n])][:3]
    why = "" if not differing else f"other bits: {', '.join(differing)}"
    if differing and nondeterministic:
        why += f" (nondeterministic kernels: {', '.join(nondeterministic)})"
    return {"nondeterministic": nondeterministic, "ok": not differing, "why": why}


def _graphs(name: str, context: Context) -> Row:
    """A step captured by `torch.cuda.graph`: replays equal plain steps, and dropout goes on."""
    random = name.endswith("dropout")
    module, batch = prepared(name.split()[0], context, dropout=0.1 if random else 0.0)
    model = wrapped(module, context)

    def step() -> torch.Tensor:
        loss: torch.Tensor = model(**batch)
        loss.backward()
        return loss

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            model.zero_grad(set_to_none=True)
            plain = step().detach().clone()
    torch.cuda.current_stream().wait_stream(side)
    model.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    losses = []
    for _ in range(3):
        graph.replay()
        losses.append(float(captured))
    if random:
        right = len(set(losses)) == 3
        why = "" if right else f"replays draw the same numbers: {losses}"
    else:
        right = all(abs(loss - float(plain)) <= 1e-5 * abs(float(plain)) for loss in losses)
        why = "" if right else f"losses {losses}, without a graph {float(plain)}"
    return {"ok": right, "why": why}


def _own_graphs(name: str, context: Context) -> Row:
    """ORTMODULE_CUDA_GRAPH=1: replayed steps give the bits of steps that are launched one by one."""
    random = name.endswith("dropout")
    module, batch = prepared(name.split()[0], context, dropout=0.1 if random else 0.0)
    found: list[Gradients] = []
    for switch in ("0", "1"):
        with variables(ORTMODULE_CUDA_GRAPH=switch):
            model = wrapped(module, context)
        torch.manual_seed(5)
        for _ in range(4):
            model.zero_grad(set_to_none=True)
            loss = model(**batch)
            loss.backward()
        grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        found.append({"loss": loss.detach()} | grads)
    report = last_run_report(model)
    graphs, varying = report["cuda_graphs"], report["nondeterministic_kernels"]
    plain, replayed = found
    other = [n for n, g in plain.items() if not torch.equal(g, replayed[n])]
    error = _error(replayed, plain)
    # A replay draws the seeds that torch keeps for graphs, which are not those of single launches.
    same = random or not other or (bool(varying) and error < 1e-3)
    why = "; ".join(graphs["refused"]) if graphs["replayed"] == 0 else ""
    if graphs["replayed"] == 0 and not why:
        why = "no step was replayed"
    elif not same:
        why = f"other bits, error {error:.2g}: {', '.join(other[:3])} and {max(len(other) - 3, 0)} more"
    row = {"replayed": graphs["replayed"], "nondeterministic": varying, "ok": not why, "why": why}
    return row if random else row | {"error": error}


PARITY = Part(
    "parity",
    "gradients of whole models in float32, against eager's in float64 on the same GPU",
    lambda: list(models.ALL_NAMES),
    _parity,
    on_host=True,
    limit_s=180,
    row_s=2.5,
)
PRECISION = Part(
    "precision",
    "autocast in float16 and bfloat16, modules in bfloat16",
    lambda: list(_PRECISIONS),
    _precision,
    limit_s=180,
    row_s=3.0,
)
EXACTNESS = Part(
    "exactness",
    "the same bits at every level of the memory optimizer and under a budget, dropout included",
    lambda: ["gpt", "gpt_fused", "bert", "t5", "vit", "llama", "resnet"],
    _exactness,
    on_host=True,
    limit_s=180,
    row_s=15.0,
)
GRAPHS = Part(
    "graphs",
    "steps captured by torch.cuda.graph and replayed",
    lambda: ["mlp", "gpt", "gpt dropout", "vit"],
    _graphs,
    limit_s=60,
    row_s=2.5,
)
OWN_GRAPHS = Part(
    "own graphs",
    "steps replayed by ORTMODULE_CUDA_GRAPH=1, against steps launched one by one",
    lambda: ["mlp", "gpt", "gpt dropout", "bert", "vit", "resnet"],
    _own_graphs,
    on_host=True,
    limit_s=120,
    row_s=4.5,
)
