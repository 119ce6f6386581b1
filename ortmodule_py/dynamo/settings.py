"""Dynamo's configuration and counters while our modules run."""

from __future__ import annotations

import functools
import logging
import sys
import warnings
from typing import Any

import torch

from ortmodule_py.base.torch_state import SharedPatch

CAPTURES_PER_FUNCTION = 256
"""Captures of one function over all modules of a process, before it is left to eager PyTorch."""

CONFIG_IS_THREAD_LOCAL = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)
"""Whether each thread has a configuration of Dynamo's of its own."""


def dynamo_settings(changing_attributes: bool = False, hooks: bool = False) -> Any:
    """Dynamo's configuration while our modules run.

    Reaching the limit of captures raises `RecompileLimit`, as the alternative is silent eager.
    With `changing_attributes`, an integer attribute that changes is no constant of a capture. With
    `hooks`, each call looks for new hooks of submodules.
    """
    settings: dict[str, Any] = {
        "allow_rnn": True,
        "recompile_limit": CAPTURES_PER_FUNCTION,
        "accumulated_recompile_limit": 16 * CAPTURES_PER_FUNCTION,
        "fail_on_recompile_limit_hit": True,
        # Gradients are handed over in pieces anyway; cutting the graph at DDP's buckets would cost memory.
        "optimize_ddp": False,
        "skip_nnmodule_hook_guards": not hooks,
        # `np.random` draws in eager, behind a graph break: in a graph, torch would draw other numbers.
        "use_numpy_random_stream": True,
    }
    if changing_attributes:
        settings["allow_unspec_int_on_nn_module"] = True
    if not CONFIG_IS_THREAD_LOCAL:
        # Another thread's tracing, under a flag of the process, would forbid the call.
        settings["force_compile_during_fx_trace"] = True
        return SharedPatch(torch._dynamo.config.patch(**settings))
    # torch 2.11 cannot write this setting into its own log and prints a traceback instead.
    settings["ignore_logging_functions"] = _logging_functions()
    return torch._dynamo.config.patch(**settings)


def skip_counters() -> tuple[int, int]:
    """How many functions Dynamo did not capture, and how often it met what it cannot trace.

    Where both grow, it has left a whole function to eager PyTorch, as it does without a word: it
    would have to break the graph within a loop, a `with` or a `try`.
    """
    frames = torch._dynamo.utils.counters["frames"]
    unknown = torch._dynamo.utils.counters["unimplemented"]
    return frames["total"] - frames["ok"], sum(unknown.values())


@functools.cache
def silence_limit_warnings() -> None:
    """Dynamo gives the last reason for a capture and the way to all of them, but with every call."""
    logging.getLogger("torch._dynamo.convert_frame").addFilter(
        lambda record: not str(record.msg).startswith("torch._dynamo hit config")
    )


def _logging_functions() -> set[Any]:
    """Functions that only print: Dynamo skips them instead of breaking the graph. Asked for each
    module, since libraries with such functions of their own may be imported at any time."""
    names = ("debug", "info", "warning", "error", "critical", "exception", "log")
    functions: set[Any] = {getattr(logging.Logger, name) for name in names}
    functions.add(warnings.warn)
    transformers_logging = sys.modules.get("transformers.utils.logging")
    for name in ("warning_once", "info_once", "warning_advice"):
        if hasattr(transformers_logging, name):
            functions.add(getattr(transformers_logging, name))
    return functions
