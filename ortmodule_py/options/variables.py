"""All ORTMODULE environment variables: what they do here, compared with ORTModule.

`markdown_table()` makes the table of docs/migrating.md.
"""

from __future__ import annotations

import difflib
import enum
import logging
import os
from dataclasses import dataclass
from functools import partial

PREFIX = "ORTMODULE_"


class Status(enum.Enum):
    """What a variable does here, compared with ORTModule."""

    SAME = "same"
    CHANGED = "changed"
    NEW = "new"
    MOOT = "no effect"
    """Ignored, with one notice: there is nothing to choose."""
    BUILD = "build"
    """Read during installation only."""


@dataclass(frozen=True)
class Variable:
    """One row of the table."""

    status: Status
    meaning: str
    values: str = "0, 1 (0)"
    """Those that it takes, then its default in brackets."""
    only: str = ""
    """The only value that has an effect, if there is just one."""


_same = partial(Variable, Status.SAME)
_changed = partial(Variable, Status.CHANGED)
_new = partial(Variable, Status.NEW)
_moot = partial(Variable, Status.MOOT, values="any")
_build = partial(Variable, Status.BUILD)

_ROWS = {
    "MEMORY_OPT_LEVEL": _changed(
        "recompute by layer, in any model with repeated layers; other values are errors",
        "0, 1, 2 (0)",
    ),
    "MEMORY_OPT_CONFIG": _changed(
        "a JSON file, a JSON list or a comma-separated list; counts mean the first occurrences",
        "file or list",
    ),
    "MEMORY_OPT_BUDGET": _new(
        "bytes that training may take; the fastest known plan that fits is used",
        "20GiB, activations:60%",
    ),
    "MEMORY_OPT_STRICT": _new(
        "a later, larger shape that does not fit the budget is an error instead of a warning"
    ),
    "LOG_LEVEL": _changed(
        "wins over DebugOptions everywhere; works without logging set-up; a bad value is a ValueError",
        "VERBOSE ... FATAL (WARNING)",
    ),
    "SAVE_ONNX_PATH": _same("where DebugOptions(save_onnx=True) writes", "directory (.)"),
    "PRINT_MEMORY_STATS": _changed(
        "a line of bytes before and after forward and backward, at the default log level"
    ),
    "FALLBACK_POLICY": _changed(
        "FALLBACK_DISABLE makes a piece that cannot be compiled an error; by default, and "
        "with all other names, that piece alone runs in eager PyTorch, reported once",
        "policy names, A|B (per piece)",
        only="FALLBACK_DISABLE",
    ),
    "BYPASS": _new("run the original module"),
    "FULLGRAPH": _new("a graph break is an error"),
    "OUTPUTS": _new("the outputs that training reads; the others are None", "names"),
    "RNG": _new(
        "torch: dropout and noise are eager's numbers, kept for backward", "philox, torch (philox)"
    ),
    "VERIFY_EVERY": _new(
        "compare every n-th training forward with eager PyTorch; a difference is an error", "n (0)"
    ),
    "CONV_ALGO_SEARCH": _changed(
        "how cuDNN's algorithms are chosen, within planned scratch; by default EXHAUSTIVE "
        "where torch.backends.cudnn.benchmark is on, otherwise HEURISTIC; a bad value is a "
        "ValueError",
        "EXHAUSTIVE, HEURISTIC, DEFAULT (by torch)",
    ),
    "MACHINE_RATES": _new(
        "whether the memory optimizer's times follow from rates measured on this machine",
        "measure, estimate (measure)",
    ),
    "CACHE_DIR": _changed(
        "where measured rates and choices, results of checks and generated kernels are kept; no model is "
        "cached, as capture takes seconds",
        "directory (~/.cache/ortmodule_py)",
    ),
    "CUDA_GRAPH": _new(
        "replay steps as CUDA graphs, for models that spend their time on kernel launches; "
        "copies inputs and outputs"
    ),
    "GENERATED_CODE": _new(
        "pointwise groups on a GPU become code of their own, compiled in the background; auto: where "
        "`tools.gpu_check` has passed",
        "auto, 0, 1 (auto)",
    ),
    "GRAPH_CONVOLUTIONS": _new(
        "convolutions of 16 bits on a GPU run by execution plans of cuDNN's graph API; auto: where "
        "`tools.gpu_check` has passed",
        "auto, 0, 1 (auto)",
    ),
    "PRODUCT_EPILOGUES": _new(
        "products on a GPU sum a bias's gradient and apply Gelu's tanh form in cuBLASLt's epilogue; measure: where "
        "that takes less time than a kernel of its own, chosen once for each problem; auto: as measure where "
        "`tools.gpu_check` has passed, else 1",
        "auto, 0, 1, measure (auto)",
    ),
    "FUSED_ATTENTION": _new(
        "attention that a model writes as products and a softmax trains as one operator, which keeps no "
        "scores; auto: on a GPU where `tools.gpu_check` has passed",
        "auto, 0, 1 (auto)",
    ),
    "OFFLOAD": _new(
        "budgets and configurations may keep saved activations of a GPU in memory of the host; auto: where "
        "`tools.gpu_check` has passed",
        "auto, 0, 1 (auto)",
    ),
    "OFFLOAD_BUDGET": _new(
        "the most bytes of the host that they take", "64GiB (a quarter of its memory)"
    ),
    "CUDA_EMULATION": _new(
        "run a model on the CPU through the CUDA kernels (developer builds for a CPU torch only)"
    ),
    "VERIFY": _new("check the graph after each pass"),
    "DUMP": _new("write the text of the graph after each stage", "directory"),
    "FUEL": _new("stop after n rewrites, to find a wrong one by bisection", "n"),
    "DISABLE_PASSES": _new("leave out passes by name", "a,b"),
    "SKIPCHECK_POLICY": _moot("the checks are guards that cost microseconds and are never skipped"),
    "FALLBACK_RETRY": _moot("only the piece that cannot be compiled runs in eager PyTorch"),
    "ALLOW_AUTOGRAD_CHECKPOINT": _moot("torch.utils.checkpoint is captured like any other code"),
    "ENABLE_CUSTOM_AUTOGRAD": _moot(
        "torch.autograd.Function is always captured with its own backward"
    ),
    "SKIPPED_AUTOGRAD_FUNCTIONS": _moot("functions of one name are told apart"),
    "ENABLE_MEM_EFFICIENT_GRAD_MGMT": _moot(
        "parameters always receive their gradients while backward runs"
    ),
    "DEEPCOPY_BEFORE_MODEL_EXPORT": _moot("the module is neither copied nor run for capture"),
    "ONNX_OPSET_VERSION": _moot("the opset is fixed"),
    "ENABLE_COMPUTE_OPTIMIZER": _moot("there is no FLOP reduction to switch off"),
    "ENABLE_EMBEDDING_SPARSE_OPTIMIZER": _moot("padding is computed like any other row"),
    "ENABLE_LABEL_SPARSE_OPTIMIZER": _moot(
        "rows of ignored labels are left out on the CPU, always"
    ),
    "ENABLE_SPARSE_OPTIMIZER": _moot("removed from ORTModule before 1.19"),
    "PRINT_INPUT_DENSITY": _moot("there is no optimizer that depends on density"),
    "ENABLE_ZERO_STAGE3": _moot("DeepSpeed is not patched"),
    "JSON_CONFIG_PATH": _moot("set variables or arguments instead of a configuration file"),
    "USE_TRITON": _moot("generated Triton code is not used"),
    "TRITON_CONFIG_FILE": _moot("generated Triton code is not used"),
    "TRITON_DEBUG": _moot("generated Triton code is not used"),
    "USE_FLASH_ATTENTION": _moot("scaled_dot_product_attention stays one operator"),
    "USE_EFFICIENT_ATTENTION": _moot("scaled_dot_product_attention stays one operator"),
    "ATEN_SDPA_FALLBACK": _moot("scaled_dot_product_attention stays one operator"),
    "ENABLE_TUNING": _moot("there is no online tuning of kernels"),
    "MAX_TUNING_DURATION_MS": _moot("there is no online tuning of kernels"),
    "TUNING_RESULTS_PATH": _moot("there is no online tuning of kernels"),
    "MEMORY_OPT_PROBE_RECOMPUTE_LEVEL": _moot("removed from ORTModule in 1.17; set a level"),
    "TORCH_CPP_DIR": _moot("the extension is part of the package"),
    "DISABLE_CPU_TRAINING_TEST": _moot("a switch of ORTModule's own tests"),
    "CUDA": _build("require the CUDA kernels, or build without them", "ON, OFF"),
    "BUILD_FOLDER": _build("keep the objects of an install there, for the next one", "folder"),
}
BY_NAME: dict[str, Variable] = {PREFIX + name: row for name, row in _ROWS.items()}

_reported: set[str] = set()


def report_environment(logger: logging.Logger) -> None:
    """Warns once per process about ORTMODULE variables that are unknown or have no effect."""
    if not logger.isEnabledFor(logging.WARNING):
        return
    for name in sorted(os.environ):
        if not name.startswith(PREFIX) or name in _reported:
            continue
        found = notice(name, os.environ[name])
        if found is not None:
            _reported.add(name)
            logger.warning("ortmodule_py: %s", found)


def notice(name: str, value: str) -> str | None:
    """What is wrong with an ORTMODULE variable: unknown, or without effect. None if nothing is."""
    variable = BY_NAME.get(name)
    if variable is None:
        known = [
            each for each, row in BY_NAME.items() if row.status not in (Status.MOOT, Status.BUILD)
        ]
        nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
        return f"[environment] a variable must have a known name, but found {name}; the nearest is {nearest}"
    if variable.status is Status.MOOT:
        return f"{name} has no effect: {variable.meaning}"
    if variable.only and variable.only not in value:
        return f"{name}={value} has no effect: {variable.meaning}"
    return None


def markdown_table() -> str:
    """The table in docs/migrating.md."""
    lines = ["| variable | values (default) | status | meaning here |", "|---|---|---|---|"]
    for name, row in BY_NAME.items():
        values, meaning = (text.replace("|", "\\|") for text in (row.values, row.meaning))
        lines.append(f"| `{name}` | {values} | {row.status.value} | {meaning} |")
    return "\n".join(lines)
