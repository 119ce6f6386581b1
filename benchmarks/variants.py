"""The ways to train a benchmark model: eager, checkpointed, compiled, and ORTModule."""

from __future__ import annotations

import functools
import re
from typing import Any

import torch

from benchmarks.models import BenchmarkModel, checkpoint_blocks, checkpoint_blocks_selectively

LEVEL_VARIABLE = "ORTMODULE_MEMORY_OPT_LEVEL"
DEFAULT = ("eager", "checkpoint", "compile", "ours", "ours1")
HELP = (
    "eager; checkpoint (per block); selective (per block, keeping what matrix products, "
    "convolutions and attention return); compile or compile_budget_FRACTION (inductor, with an "
    "activation_memory_budget); dynamo (Dynamo alone, eager backend); dynamo-marked (the same, "
    "with the sizes symbolic that ORTModule makes symbolic); ours, ours1, ours2 "
    "(ORTModule at that memory level); ours_budget_PERCENT (of the step's peak) and ours_least "
    "(the least budget that can be kept); any of them with :NAME=VALUE[,NAME=VALUE] for the "
    "environment of its process"
)
_FIXED = (*DEFAULT, "selective", "dynamo", "dynamo-marked", "ours2", "ours_least")
_BUDGETED = re.compile(r"compile_budget_[01](\.\d+)?|ours_budget_\d+(\.\d+)?")


def base_name(variant: str) -> str:
    """The variant without its environment."""
    return variant.partition(":")[0]


def is_ours(variant: str) -> bool:
    """Whether the variant runs ORTModule."""
    return base_name(variant).startswith("ours")


def environment(variant: str) -> dict[str, str]:
    """Variables that the variant's process is started with."""
    name, _, assignments = variant.partition(":")
    result: dict[str, str] = {}
    if is_ours(variant):
        level = name.removeprefix("ours")
        result[LEVEL_VARIABLE] = level if level.isdigit() else "0"
    for assignment in filter(None, assignments.split(",")):
        key, _, value = assignment.partition("=")
        result[key] = value
    return result


def check(variant: str) -> str:
    """Return the variant's name; raise ``ValueError`` when there is none of that name."""
    name = base_name(variant)
    if name not in _FIXED and _BUDGETED.fullmatch(name) is None:
        raise ValueError(f"unknown variant {variant!r}; there are: {HELP}")
    return variant


def wrap(model: BenchmarkModel, variant: str) -> Any:
    """The callable that a training script would use in place of the module."""
    name = base_name(check(variant))
    if name == "eager":
        return model.module
    if name == "checkpoint":
        checkpoint_blocks(model)
        return model.module
    if name == "selective":
        checkpoint_blocks_selectively(model)
        return model.module
    if name == "dynamo":
        return torch.compile(model.module, backend="eager")
    if name == "dynamo-marked":
        return _with_marked_sizes(torch.compile(model.module, backend="eager"))
    if name.startswith("compile"):
        if "_" in name:
            import torch._functorch.config as functorch_config

            budget = float(name.removeprefix("compile_budget_"))
            functorch_config.activation_memory_budget = budget
        return torch.compile(model.module)
    return _ortmodule(model, name)


def _ortmodule(model: BenchmarkModel, name: str) -> Any:
    from ortmodule_py import ORTModule

    budget = None
    if name.startswith("ours_budget_"):
        budget = f"activations:{name.removeprefix('ours_budget_')}%"
    elif name == "ours_least":
        budget = f"activations:{_least_bytes(model)}"
    return ORTModule(model.module, memory_budget=budget)


def _least_bytes(model: BenchmarkModel) -> int:
    """The least peak of a step, which the error of a budget that nothing can keep states."""
    from ortmodule_py import ORTModule

    try:
        ORTModule(model.module, memory_budget="activations:1")(**model.batch(model.batch_size))
    except RuntimeError as error:
        stated = re.search(r"a budget of at least (\d+) bytes", str(error))
        if stated is None:
            raise
        return int(stated[1])
    raise RuntimeError("a step within one byte ran")


def _with_marked_sizes(compiled: Any) -> Any:
    def run(**batch: torch.Tensor) -> Any:
        for tensor in batch.values():
            for dim in [0] if tensor.is_floating_point() else range(tensor.dim()):
                torch._dynamo.maybe_mark_dynamic(tensor, dim)
        return compiled(**batch)

    return run


@functools.cache
def _report_function() -> Any:
    from ortmodule_py import last_run_report

    return last_run_report


def report(wrapped: Any, variant: str) -> dict[str, Any]:
    """ORTModule's own report of the last run; empty for the other variants."""
    return dict(_report_function()(wrapped)) if is_ours(variant) else {}
