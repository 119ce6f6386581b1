"""A logger per ORTModule with its own handler, so that levels work without logging set-up."""

from __future__ import annotations

import logging
import sys
from typing import Any

from ortmodule_py.base.environment import rank
from ortmodule_py.options.debug import LogLevel

DEVINFO = logging.DEBUG + 5
"""Python's number for `LogLevel.DEVINFO`."""

_PYTHON_LEVEL = {
    LogLevel.VERBOSE: logging.DEBUG,
    LogLevel.DEVINFO: DEVINFO,
    LogLevel.INFO: logging.INFO,
    LogLevel.WARNING: logging.WARNING,
    LogLevel.ERROR: logging.ERROR,
    LogLevel.FATAL: logging.CRITICAL,
}


class _StderrHandler(logging.StreamHandler):
    """Writes to the current sys.stderr, which test runners replace, and above progress bars of tqdm."""

    def emit(self, record: logging.LogRecord) -> None:
        bar: Any = getattr(sys.modules.get("tqdm"), "tqdm", None)
        if getattr(bar, "_instances", None):
            bar.write(self.format(record), file=sys.stderr)
            return
        self.stream = sys.stderr
        super().emit(record)


def module_logger(level: LogLevel, name: int | str) -> logging.Logger:
    """The logger of one ORTModule, by its number. Ranks other than 0 log at DEVINFO and VERBOSE only."""
    logger = logging.getLogger(f"ortmodule_py.{name}")
    logger.propagate = False
    if not logger.handlers:
        handler = _StderrHandler()
        handler.setFormatter(logging.Formatter("%(message)s"))
        logger.addHandler(handler)
    logger.setLevel(_PYTHON_LEVEL[level])
    logger.disabled = rank() != 0 and level >= LogLevel.INFO
    return logger
