"""Dynamo's configuration and counters while ORTModules run."""

from __future__ import annotations

import functools
import logging
import sys
import warnings
from typing import Any

import torch

from ortmodule_py.base.torch_state import SharedPatch

CAPTURES_PER_FUNCTION = 256
"""Limit of captures of one function over all modules of a process; beyond it, it runs in eager PyTorch."""

CONFIG_IS_THREAD_LOCAL = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)
"""Whether each thread has its own configuration of Dynamo."""


def dynamo_settings(changing_attributes: bool = False, hooks: bool = False) -> Any:
    """A context with Dynamo's configuration for ORTModules.

    The limit of captures raises `RecompileLimit`, where Dynamo would silently run eager. With
    `changing_attributes`, integer attributes of modules are dynamic. With `hooks`, each call guards on
    the hooks of submodules.
    """
    settings: dict[str, Any] = {
        "allow_rnn": True,
        "recompile_limit": CAPTURES_PER_FUNCTION,
        "accumulated_recompile_limit": 16 * CAPTURES_PER_FUNCTION,
        "fail_on_recompile_limit_hit": True,
        # DDP gets gradients early without it; splitting the graph at its buckets would cost memory.
        "optimize_ddp": False,
        "skip_nnmodule_hook_guards": not hooks,
        # Breaks the graph at `np.random`: Dynamo would replace it by torch's generator.
        "use_numpy_random_stream": True,
    }
    if hasattr(torch._dynamo.config, "enable_dynamo_decompositions"):
        # Into operators of inductor, which take `value` of addcdiv_ as a constant.
        settings["enable_dynamo_decompositions"] = False
    if hasattr(torch._dynamo.config, "trace_autograd_ops"):
        # `backward()` breaks the graph; `patches/inner_gradients` turns it on for `torch.autograd.grad`.
        settings["trace_autograd_ops"] = False
    if hasattr(torch._dynamo.config, "record_runtime_overhead"):
        # Two calls in each run that only name a range in torch's profiles.
        settings["record_runtime_overhead"] = False
    if changing_attributes:
        settings["allow_unspec_int_on_nn_module"] = True
    if not CONFIG_IS_THREAD_LOCAL:
        # Another thread's tracing sets a flag of the process that would forbid the call.
        settings["force_compile_during_fx_trace"] = True
        return SharedPatch(torch._dynamo.config.patch(**settings))
    # torch 2.11 cannot write this setting into its own log and prints a traceback instead.
    settings["ignore_logging_functions"] = _logging_functions()
    return torch._dynamo.config.patch(**settings)


@functools.cache
def silence_limit_warnings() -> None:
    """Drop Dynamo's warning about its capture limit, which it repeats with every call."""
    logging.getLogger("torch._dynamo.convert_frame").addFilter(
        lambda record: not str(record.msg).startswith("torch._dynamo hit config")
    )


def _logging_functions() -> set[Any]:
    """Functions that only log, which Dynamo shall skip without a graph break.

    Collected for each module, as libraries with such functions may be imported at any time.
    """
    names = ("debug", "info", "warning", "error", "critical", "exception", "log")
    functions: set[Any] = {getattr(of, name) for of in (logging.Logger, logging) for name in names}
    functions.add(warnings.warn)
    transformers_logging = sys.modules.get("transformers.utils.logging")
    for name in ("warning_once", "info_once", "warning_advice"):
        if hasattr(transformers_logging, name):
            functions.add(getattr(transformers_logging, name))
    return functions
