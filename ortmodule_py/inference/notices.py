"""Messages of sessions: onnxruntime's severities, its line on stderr, and its callback."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import traceback
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

from ortmodule_py.inference.errors import InvalidArgument

VERBOSE, INFO, WARNING, ERROR, FATAL = range(5)

LogCallback = Callable[[int, str, str, str, str], Any]


class _Logger:
    def __init__(self) -> None:
        self.severity = WARNING
        self.verbosity = 0
        self.callback: LogCallback | None = None
        self.given: set[str] = set()
        self.lock = threading.Lock()


_logger = _Logger()


def set_default_logger_severity(severity: int) -> None:
    """Sets the least severity that is logged: 0 verbose, 1 info, 2 warning, 3 error, 4 fatal."""
    _logger.severity = checked_severity(severity)


def set_default_logger_verbosity(verbosity: int) -> None:
    """Accepted; there is one level of verbose messages."""
    _logger.verbosity = int(verbosity)


def set_default_logger_callback(callback: LogCallback | None, severity: int = WARNING) -> None:
    """Sends messages to `callback(severity, category, logid, code_location, message)`.

    None sends them to stderr again. `severity` becomes the default severity.
    """
    checked_severity(severity)
    if callback is not None and not callable(callback):
        raise InvalidArgument(f"[logger] a callback must be callable, but found {callback!r}")
    _logger.callback = callback
    if callback is not None:
        _logger.severity = severity


def checked_severity(severity: int) -> int:
    """The severity, if it is one. Raises InvalidArgument otherwise."""
    if not VERBOSE <= int(severity) <= FATAL:
        raise InvalidArgument(f"[logger] a severity must be from 0 to 4, but found {severity}")
    return int(severity)


class Log:
    """Messages of one session. A `severity` of -1 is that of the default logger."""

    def __init__(self, severity: int = -1, logid: str = "") -> None:
        self._severity = severity
        self._logid = logid

    def wants(self, severity: int) -> bool:
        """Whether such a message is logged."""
        return severity >= (_logger.severity if self._severity < 0 else self._severity)

    def write(self, severity: int, message: str, where: str = "session") -> None:
        """Logs a message."""
        if not self.wants(severity):
            return
        if _logger.callback is not None:
            try:
                _logger.callback(severity, "onnxruntime", self._logid, where, message)
                return
            except Exception:
                with contextlib.suppress(OSError, ValueError):
                    traceback.print_exc()
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        with contextlib.suppress(OSError, ValueError):
            print(
                f"{stamp} [{'VIWEF'[severity]}:onnxruntime:{self._logid}, {where}] {message}",
                file=sys.stderr,
            )

    def once(self, key: str, message: str, where: str = "options") -> None:
        """Logs a warning, unless the process has seen one with this key."""
        if not self.wants(WARNING):
            return
        with _logger.lock:
            if key in _logger.given:
                return
            _logger.given.add(key)
        self.write(WARNING, message, where)


def forget_notices() -> None:
    """Gives every notice again, for tests."""
    with _logger.lock:
        _logger.given.clear()


def did_you_mean(name: str, known: list[str], cutoff: float = 0.6) -> str:
    """`; did you mean 'x'?`, or nothing where no name is near."""
    names = {each.lower(): each for each in known}
    near = get_close_matches(name.lower(), list(names), 1, cutoff)
    return f"; did you mean '{names[near[0]]}'?" if near else ""
