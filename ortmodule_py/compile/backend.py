"""`torch.compile(model, backend="ortmodule")`: the engine without the wrapper.

The backend sees one captured graph at a time, without its module. Each capture therefore gets its own
compiler, freed when Dynamo drops the capture. Each event is logged once per process. Only ORTModule
has a banner, a report, and frees captures with their module.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import fx
from torch._guards import CompileContext

from ortmodule_py.compile.capture_log import CaptureLog
from ortmodule_py.compile.compiler import Compiler
from ortmodule_py.compile.step_budget import StepBudget
from ortmodule_py.dynamo import patches
from ortmodule_py.dynamo.cache import innermost_backend
from ortmodule_py.dynamo.progress import Progress
from ortmodule_py.options.debug import DebugOptions
from ortmodule_py.options.engine import EngineOptions
from ortmodule_py.options.logger import module_logger
from ortmodule_py.options.variables import report_environment

# Live pieces by Dynamo's frame id, so that a budget can tell a new shape in mid-training from the
# first one. Models of one class share their frames.
_pieces_of: defaultdict[int, weakref.WeakSet[Any]] = defaultdict(weakref.WeakSet)
_reported: list[CaptureLog] = []
"""The log of this process, empty before the first capture."""
_memory_warnings: set[str] = set()


def _new_compiler(earlier: Sequence[Any] = ()) -> Compiler:
    """A compiler with the options of the environment; `earlier` are pieces of the same function."""
    options = EngineOptions.from_environment()
    logger = module_logger(DebugOptions().log_level, "compile")
    report_environment(logger)
    if not _reported:
        _reported.append(CaptureLog(options, logger, captured_lines=None))
    log = replace(_reported[0], options=options, logger=logger, specialized={})
    for warning in options.memory.warnings:
        if warning not in _memory_warnings:
            _memory_warnings.add(warning)
            logger.warning("ortmodule_py: %s", warning)
    budget = StepBudget(options.memory, logger, earlier=earlier, warned=_memory_warnings)
    return Compiler(options, logger, log=log, budget=budget)


def ortmodule(gm: fx.GraphModule, example_inputs: Sequence[Any], **_: Any) -> Callable[..., Any]:
    """Compile one captured graph; falls back to eager PyTorch if it cannot be lowered, and logs that once."""
    capture = CompileContext.current_compile_id()
    function = -1 if capture is None or capture.frame_id is None else capture.frame_id
    compiler = _new_compiler(list(_pieces_of[function]))
    with Progress(compiler.logger) as progress:
        progress.begin()
        run = compiler(gm, example_inputs)
    compiler.budget.earlier = ()
    _pieces_of[function].update(piece.compiled for piece in compiler.pieces)
    _reported[0].checkpoints_reported |= compiler.log.checkpoints_reported
    return run


def compiler_of(backend: Any) -> Compiler | None:
    """Our compiler inside the wrappers that Dynamo puts around a backend, or None."""
    backend = innermost_backend(backend)
    if backend is ortmodule:
        return _new_compiler()
    return backend if isinstance(backend, Compiler) else None


patches.install(compiler_of)
