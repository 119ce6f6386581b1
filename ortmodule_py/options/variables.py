"""All ORTMODULE environment variables: what they do here, compared with ORTModule.

`markdown_table()` makes the table of docs/migrating.md.
"""

from __future__ import annotations

import difflib
import enum
import logging
import os
from dataclasses import dataclass

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

    name: str
    values: str
    default: str
    status: Status
    meaning: str
    only: str = ""
    """The only value that has an effect, if there is just one."""


def _same(name: str, values: str, default: str, meaning: str) -> Variable:
    return Variable(PREFIX + name, values, default, Status.SAME, meaning)


def _changed(name: str, values: str, default: str, meaning: str, only: str = "") -> Variable:
    return Variable(PREFIX + name, values, default, Status.CHANGED, meaning, only)


def _new(name: str, values: str, default: str, meaning: str) -> Variable:
    return Variable(PREFIX + name, values, default, Status.NEW, meaning)


def _moot(name: str, meaning: str) -> Variable:
    return Variable(PREFIX + name, "any", "", Status.MOOT, meaning)


def _build(name: str, values: str, meaning: str) -> Variable:
    return Variable(PREFIX + name, values, "", Status.BUILD, meaning)


VARIABLES: tuple[Variable, ...] = (
    _changed(
        "MEMORY_OPT_LEVEL",
        "0, 1, 2",
        "0",
        "recompute by layer, in any model with repeated layers; other values are errors",
    ),
    _changed(
        "MEMORY_OPT_CONFIG",
        "file or list",
        "",
        "a JSON file, a JSON list or a comma-separated list; counts mean the first occurrences",
    ),
    _new(
        "MEMORY_OPT_BUDGET",
        "20GiB, activations:60%",
        "",
        "bytes that training may take; the fastest known plan that fits is used",
    ),
    _new(
        "MEMORY_OPT_STRICT",
        "0, 1",
        "0",
        "a later, larger shape that does not fit the budget is an error instead of a warning",
    ),
    _changed(
        "LOG_LEVEL",
        "VERBOSE ... FATAL",
        "WARNING",
        "wins over DebugOptions everywhere; works without logging set-up; a bad value is a ValueError",
    ),
    _same("SAVE_ONNX_PATH", "directory", ".", "where DebugOptions(save_onnx=True) writes"),
    _changed(
        "PRINT_MEMORY_STATS",
        "0, 1",
        "0",
        "a line of bytes before and after forward and backward, at the default log level",
    ),
    _changed(
        "FALLBACK_POLICY",
        "policy names, A|B",
        "per piece",
        "FALLBACK_DISABLE makes a piece that cannot be compiled an error; by default, and with all "
        "other names, that piece alone runs in eager PyTorch, reported once",
        only="FALLBACK_DISABLE",
    ),
    _new("BYPASS", "0, 1", "0", "run the original module"),
    _new("FULLGRAPH", "0, 1", "0", "a graph break is an error"),
    _new("OUTPUTS", "names", "", "the outputs that training reads; the others are None"),
    _new(
        "RNG",
        "philox, torch",
        "philox",
        "torch: dropout and noise are eager's numbers, kept for backward",
    ),
    _new(
        "VERIFY_EVERY",
        "n",
        "0",
        "compare every n-th training forward with eager PyTorch; a difference is an error",
    ),
    _changed(
        "CONV_ALGO_SEARCH",
        "EXHAUSTIVE, HEURISTIC, DEFAULT",
        "by torch",
        "how cuDNN's algorithms are chosen, within planned scratch; by default EXHAUSTIVE where "
        "torch.backends.cudnn.benchmark is on, otherwise HEURISTIC; a bad value is a ValueError",
    ),
    _new(
        "MACHINE_RATES",
        "measure, estimate",
        "measure",
        "whether the memory optimizer's times follow from rates measured on this machine",
    ),
    _changed(
        "CACHE_DIR",
        "directory",
        "~/.cache/ortmodule_py",
        "where the measured rates of the machine are kept; no model is cached, as capture takes "
        "seconds",
    ),
    _new(
        "CUDA_GRAPH",
        "0, 1",
        "0",
        "replay steps as CUDA graphs, for models that spend their time on kernel launches; copies inputs "
        "and outputs",
    ),
    _new(
        "CUDA_EMULATION",
        "0, 1",
        "0",
        "run a model on the CPU through the CUDA kernels (developer builds for a CPU torch only)",
    ),
    _new("VERIFY", "0, 1", "0", "check the graph after each pass"),
    _new("DUMP", "directory", "", "write the text of the graph after each stage"),
    _new("FUEL", "n", "", "stop after n rewrites, to find a wrong one by bisection"),
    _new("DISABLE_PASSES", "a,b", "", "leave out passes by name"),
    _moot("SKIPCHECK_POLICY", "the checks are guards that cost microseconds and are never skipped"),
    _moot("FALLBACK_RETRY", "only the piece that cannot be compiled runs in eager PyTorch"),
    _moot("ALLOW_AUTOGRAD_CHECKPOINT", "torch.utils.checkpoint is captured like any other code"),
    _moot(
        "ENABLE_CUSTOM_AUTOGRAD", "torch.autograd.Function is always captured with its own backward"
    ),
    _moot(
        "ENABLE_MEM_EFFICIENT_GRAD_MGMT",
        "parameters always receive their gradients while backward runs",
    ),
    _moot("DEEPCOPY_BEFORE_MODEL_EXPORT", "the module is neither copied nor run for capture"),
    _moot("ONNX_OPSET_VERSION", "the opset is fixed"),
    _moot("ENABLE_COMPUTE_OPTIMIZER", "there is no FLOP reduction to switch off"),
    _moot("ENABLE_EMBEDDING_SPARSE_OPTIMIZER", "padding is computed like any other row"),
    _moot("ENABLE_LABEL_SPARSE_OPTIMIZER", "ignored labels are left to the loss"),
    _moot("ENABLE_SPARSE_OPTIMIZER", "removed from ORTModule before 1.19"),
    _moot("PRINT_INPUT_DENSITY", "there is no optimizer that depends on density"),
    _moot("ENABLE_ZERO_STAGE3", "DeepSpeed is not patched"),
    _moot("JSON_CONFIG_PATH", "set variables or arguments instead of a configuration file"),
    _moot("USE_TRITON", "generated Triton code is not used"),
    _moot("TRITON_CONFIG_FILE", "generated Triton code is not used"),
    _moot("TRITON_DEBUG", "generated Triton code is not used"),
    _moot("USE_FLASH_ATTENTION", "scaled_dot_product_attention stays one operator"),
    _moot("USE_EFFICIENT_ATTENTION", "scaled_dot_product_attention stays one operator"),
    _moot("ATEN_SDPA_FALLBACK", "scaled_dot_product_attention stays one operator"),
    _moot("ENABLE_TUNING", "there is no online tuning of kernels"),
    _moot("MAX_TUNING_DURATION_MS", "there is no online tuning of kernels"),
    _moot("TUNING_RESULTS_PATH", "there is no online tuning of kernels"),
    _moot("MEMORY_OPT_PROBE_RECOMPUTE_LEVEL", "removed from ORTModule in 1.17; set a level"),
    _moot("TORCH_CPP_DIR", "the extension is part of the package"),
    _moot("DISABLE_CPU_TRAINING_TEST", "a switch of ORTModule's own tests"),
    _build("CUDA", "ON, OFF", "require the CUDA kernels, or build without them"),
    _build("BUILD_FOLDER", "folder", "keep the objects of an install there, for the next one"),
)

BY_NAME: dict[str, Variable] = {variable.name: variable for variable in VARIABLES}

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
        known = [v.name for v in VARIABLES if v.status not in (Status.MOOT, Status.BUILD)]
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
    for variable in VARIABLES:
        values = variable.values.replace("|", "\\|")
        if variable.default:
            values += f" ({variable.default})"
        meaning = variable.meaning.replace("|", "\\|")
        lines.append(f"| `{variable.name}` | {values} | {variable.status.value} | {meaning} |")
    return "\n".join(lines)
