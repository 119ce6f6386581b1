"""What ORTModule prints: its own logger with its own handler, so that levels work in any script."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

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
    """Looks up sys.stderr at each record, as test runners replace it, and spares progress bars."""

    def emit(self, record: logging.LogRecord) -> None:
        bar: Any = getattr(sys.modules.get("tqdm"), "tqdm", None)
        if getattr(bar, "_instances", None):
            bar.write(self.format(record), file=sys.stderr)  # above the bars
            return
        self.stream = sys.stderr
        super().emit(record)


def module_logger(level: LogLevel, name: int | str) -> logging.Logger:
    """The logger of one ORTModule, by its number; silent above DEVINFO on ranks other than 0."""
    logger = logging.getLogger(f"ortmodule_py.{name}")
    logger.propagate = False
    if not logger.handlers:
        handler = _StderrHandler()
        handler.setFormatter(logging.Formatter("%(message)s"))
        logger.addHandler(handler)
    logger.setLevel(_PYTHON_LEVEL[level])
    rank = int(os.environ.get("RANK", "0") or 0)
    logger.disabled = rank != 0 and level >= LogLevel.INFO
    return logger
