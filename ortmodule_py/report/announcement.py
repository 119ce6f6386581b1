"""What the first step of a module prints: the banner and the plan table."""

from __future__ import annotations

import itertools
import logging
import weakref
from typing import TYPE_CHECKING, Any

from torch import nn

from ortmodule_py.compile.forward_record import TRAINING
from ortmodule_py.options.logger import DEVINFO
from ortmodule_py.options.memory import MemoryRequest
from ortmodule_py.report.insight import insight_lines
from ortmodule_py.report.plan_table import ROWS_BY_DEFAULT, step_pieces, step_table
from ortmodule_py.report.run import banner

if TYPE_CHECKING:
    from ortmodule_py.compile.compiler import Compiler

_announced: weakref.WeakKeyDictionary[type, set[Any]] = weakref.WeakKeyDictionary()
"""What was announced in this process, by the class of the module."""


def announce(
    compiler: Compiler,
    module: nn.Module,
    request: MemoryRequest,
    logger: logging.Logger,
    mode: str,
    seconds: float,
) -> None:
    """Log the banner of `module`, whose first forward in `mode` took `seconds`, and in training the plan table.

    Only once for all modules of a class with equal options, but for each module at level INFO.
    """
    lines = banner(compiler, module, mode, seconds) if logger.isEnabledFor(logging.WARNING) else []
    if not lines:
        return
    news = _is_news(module, mode, repr(request))
    if not news and not logger.isEnabledFor(logging.INFO):
        return
    for line in lines:
        logger.warning("%s", line)
    pieces = step_pieces(compiler) if mode == TRAINING else []
    if not pieces:
        return
    # All rows if memory options are given, else the best ones.
    whole = request.asked or logger.isEnabledFor(logging.INFO)
    for line in step_table(pieces, request, None if whole else ROWS_BY_DEFAULT):
        logger.warning("%s", line)
    if logger.isEnabledFor(DEVINFO):
        for line in itertools.chain.from_iterable(insight_lines(p, request) for p in pieces):
            logger.log(DEVINFO, "%s", line)


def _is_news(module: nn.Module, *facts: Any) -> bool:
    """Whether no module of this class was announced with the same facts yet; it then counts as announced."""
    about = (*facts, _layers(module))
    known = _announced.setdefault(type(module), set())
    news = about not in known
    known.add(about)
    return news


def _layers(module: nn.Module) -> Any:
    """The class; of containers of torch.nn, which may hold anything, also those of the layers."""
    if not type(module).__module__.startswith("torch.nn."):
        return type(module).__qualname__
    return type(module).__qualname__, tuple(map(_layers, module.children()))
