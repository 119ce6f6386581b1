"""Logs a line when a capture takes long, so that the script does not seem to hang."""

from __future__ import annotations

import logging
import threading
import time
import types
from typing import Any

import torch

from ortmodule_py.dynamo.cache import Captures

AFTER_SECONDS = 3.0
"""Shorter captures are not logged."""
_LINES_PER_MODULE = 5

_thread = threading.local()
"""`active`: the Progress of the module that runs in this thread."""


class Progress:
    """Watches the captures of one module; a context around each of its calls."""

    def __init__(self, logger: logging.Logger) -> None:
        self.stage = ""
        """Of the current capture; "" outside of captures."""
        self.captures = Captures()
        self._logger = logger
        self._lines = 0
        self._timer: threading.Timer | None = None
        self._outer: Progress | None = None

    def __enter__(self) -> Progress:
        self._outer = _active()
        _thread.active = self
        _listen()
        return self

    def __exit__(self, *_: object) -> None:
        self.stage = ""
        _thread.active = self._outer
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def begin(self) -> None:
        """A capture begins. The captures of one call, split by graph breaks, have one line."""
        self.stage = "tracing"
        if self._timer is None and self._lines < _LINES_PER_MODULE:
            self._timer = threading.Timer(AFTER_SECONDS, self._log, [time.perf_counter()])
            self._timer.daemon = True
            self._timer.start()

    def _log(self, started: float) -> None:
        if self.stage:
            self._lines += 1
            self._logger.warning(
                "ortmodule_py: capturing the model takes a while: %s, %.0f s so far",
                self.stage,
                time.perf_counter() - started,
            )


def _active() -> Progress | None:
    return getattr(_thread, "active", None)


def stage(name: str) -> None:
    """Name the stage that this thread's capture is in; "" at its end."""
    active = _active()
    if active is not None:
        active.stage = name


def _on_start(_: Any) -> None:
    active = _active()
    if active is not None:
        active.begin()


def _on_end(_: Any) -> None:
    stage("")


def add_captured(code: types.CodeType) -> None:
    """The module that runs in this thread has a capture of this code."""
    active = _active()
    if active is not None:
        active.captures.codes.add(code)


def _on_code(code: types.CodeType, _: types.CodeType) -> None:
    add_captured(code)


torch._dynamo.convert_frame.register_bytecode_hook(_on_code)


def _listen() -> None:
    """Register Dynamo's callbacks, again after `torch._dynamo.reset`."""
    dynamo: Any = torch._dynamo.callback.callback_handler
    if _on_start not in dynamo.start_callbacks:
        dynamo.register_start_callback(_on_start)
        dynamo.register_end_callback(_on_end)


_listen()
