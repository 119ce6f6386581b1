"""The ways to train a benchmark model: eager, checkpointed, compiled, and ORTModule."""

from __future__ import annotations

import functools
from typing import Any

import torch

from benchmarks.models import BenchmarkModel, checkpoint_blocks

LEVEL_VARIABLE = "ORTMODULE_MEMORY_OPT_LEVEL"
DEFAULT = ("eager", "checkpoint", "compile", "ours", "ours1")
HELP = (
    "eager; checkpoint (per block); compile or compile-BUDGET (inductor, with an "
    "activation_memory_budget); dynamo (Dynamo alone, eager backend); dynamo-marked (the same, "
    "with the sizes symbolic that ORTModule makes symbolic); ours, ours1, ours2 "
    "(ORTModule at that memory level); any of them with :NAME=VALUE[,NAME=VALUE] for the "
    "environment of its process"
)


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
        result[LEVEL_VARIABLE] = name.removeprefix("ours") or "0"
    for assignment in filter(None, assignments.split(",")):
        key, _, value = assignment.partition("=")
        result[key] = value
    return result


def check(variant: str) -> str:
    """Return the variant's name; raise ``ValueError`` when there is none of that name."""
    name = base_name(variant)
    known = name in (*DEFAULT, "dynamo", "dynamo-marked", "ours2")
    if not known and name.startswith("compile-"):
        float(name.removeprefix("compile-"))
        known = True
    if not known:
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
    if name == "dynamo":
        return torch.compile(model.module, backend="eager")
    if name == "dynamo-marked":
        return _with_marked_sizes(torch.compile(model.module, backend="eager"))
    if name.startswith("compile"):
        if "-" in name:
            import torch._functorch.config as functorch_config

            functorch_config.activation_memory_budget = float(name.removeprefix("compile-"))
        return torch.compile(model.module)
    from ortmodule_py import ORTModule

    return ORTModule(model.module)


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
