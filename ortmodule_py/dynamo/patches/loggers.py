"""Skips what only logs: `logging.getLogger(name).info(...)`, and what a program computes to log if it logs at all.

Dynamo skips the methods of a logger that it finds in a variable, by a setting of ours. Other ways to a logger, and
questions about its level, break the graph.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.source import GlobalSource
from torch._dynamo.variables import ConstantVariable
from torch._dynamo.variables.misc import LoggingLoggerVariable

from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.state import guard_by
from ortmodule_py.dynamo.patches.table import patch

_QUESTIONS = {"isEnabledFor", "getEffectiveLevel", "hasHandlers"}
_OF_LOGURU = {
    *("trace", "debug", "info", "success", "warning", "error", "critical", "exception", "log"),
}


def _probe(trial: Trial) -> bool:
    def logged(x: Tensor) -> Tensor:
        logging.getLogger("ortmodule_py.probe").debug("%s rows", len(x))
        return x.sin()

    return trial(lambda: logged, (torch.ones(3),)) and not trial.graph_breaks


@patch(
    "loggers",
    "`logging.getLogger(name)` in forward is captured.",
    {(2, 13): "torch._dynamo.variables.functions:UserFunctionVariable.call_function"},
    probe=_probe,
    needed_by=None,
)
def _call(call: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    if self.fn is logging.getLogger and all(arg.is_python_constant() for arg in args):
        logger = logging.getLogger(*(arg.as_python_constant() for arg in args))
        return LoggingLoggerVariable(
            logger, source=GlobalSource(tx.output.install_global_by_id("__logger", logger))
        )
    if _only_logs(self.fn):
        return ConstantVariable.create(None)
    return call(self, tx, args, kwargs)


def _only_logs(function: Any) -> bool:
    """Whether this is a method of loguru's logger, which is a function of a class of its own."""
    known: Any = sys.modules.get("loguru._logger")
    name = getattr(function, "__name__", "")
    return (
        known is not None and name in _OF_LOGURU and function is getattr(known.Logger, name, None)
    )


def _probe_levels(trial: Trial) -> bool:
    logger = logging.getLogger("ortmodule_py.probe")

    def logged(x: Tensor) -> Tensor:
        if logger.isEnabledFor(logging.DEBUG) and logger.getEffectiveLevel() < 20:
            logger.debug("%s", x.mean())
        return x.sin()

    return trial(lambda: logged, (torch.ones(3),)) and not trial.graph_breaks


@patch(
    "levels of loggers",
    "`logger.isEnabledFor(level)` in forward breaks no graph.",
    {(2, 13): "torch._dynamo.variables.misc:LoggingLoggerVariable.call_method"},
    probe=_probe_levels,
    needed_by=None,
)
def _ask(call: Callable[..., Any], self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
    if name in _QUESTIONS and not kwargs and all(arg.is_python_constant() for arg in args):
        logger, given = self.value, [arg.as_python_constant() for arg in args]
        found = getattr(logger, name)(*given)
        source = GlobalSource(tx.output.install_global_by_id("__logger", logger))
        guard_by(source, lambda held: getattr(held, name)(*given) == found, f"{name} of a logger")
        return ConstantVariable.create(found)
    return call(self, tx, name, args, kwargs)
