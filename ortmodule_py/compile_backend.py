"""`torch.compile(model, backend="ortmodule")`: the engine without the wrapper.

The backend sees one captured graph at a time and not the module it is from, so each capture has a
compiler of its own, which goes when Dynamo drops the capture. What is said once is said once per
process. Banner, report and the dropping of captures with their module are for ORTModule alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from .backend import Compiler, EagerPiece
from .messages import module_logger
from .options import DebugOptions
from .progress import Progress, watch_backend
from .variables import report_environment


class _Said:
    """What was said in this process."""

    def __init__(self) -> None:
        self.graph_breaks: list[str] = []
        self.eager_pieces: list[EagerPiece] = []
        self.fixed_numbers: set[tuple[str, str]] = set()
        self.memory_warnings: set[str] = set()
        self.checkpoints = False


_said = _Said()


def new_compiler() -> Compiler:
    """A compiler with the options and the log level that the environment asks for now."""
    logger = module_logger(DebugOptions().log_level, "compile")
    report_environment(logger)
    compiler = Compiler(
        logger=logger,
        graph_breaks=_said.graph_breaks,
        eager_pieces=_said.eager_pieces,
        fixed_numbers=_said.fixed_numbers,
        captured_lines=None,
        checkpoints_noted=_said.checkpoints,
    )
    for warning in compiler.options.memory.warnings:
        if warning not in _said.memory_warnings:
            _said.memory_warnings.add(warning)
            logger.warning("ortmodule_py: %s", warning)
    return compiler


def compile_piece(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Compile one captured graph; what cannot be lowered runs in eager PyTorch, said once."""
    compiler = new_compiler()
    with watch_backend(Progress(compiler.logger)):
        run = compiler(gm, example_inputs)
    _said.checkpoints |= compiler.checkpoints_noted
    return run
