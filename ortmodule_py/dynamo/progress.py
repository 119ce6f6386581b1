"""Logs a line when a capture takes long, so that the script does not seem to hang."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import types
from collections.abc import Iterator
from types import TracebackType
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
        self.captures = Captures()
        self._logger = logger
        self._lines = 0
        self._seconds = 0.0
        self._started = 0.0
        self._timer: threading.Timer | None = None
        self._outer: Progress | None = None

    def __enter__(self) -> None:
        self._outer = getattr(_thread, "active", None)
        _thread.active = self
        _listen()
        self._seconds = 0.0

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()
        _thread.active = self._outer

    def begin(self, started: float | None = None) -> None:
        """A capture begins, or began at `started`. The captures of one call, split by graph breaks, add up."""
        self.end()
        self.stage = "tracing"
        now = time.perf_counter()
        self._started = now if started is None else started
        left = AFTER_SECONDS - self._seconds
        if left < 0 or self._lines >= _LINES_PER_MODULE:
            return
        self._timer = threading.Timer(max(left - (now - self._started), 0.0), self._log)
        self._timer.daemon = True
        self._timer.start()

    def end(self) -> None:
        """The capture ended, successfully or not."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._seconds += time.perf_counter() - self._started

    def _log(self) -> None:
        self._lines += 1
        seconds = self._seconds + time.perf_counter() - self._started
        self._logger.warning(
            "ortmodule_py: capturing the model takes a while: %s, %.0f s so far",
            self.stage,
            seconds,
        )


@contextlib.contextmanager
def watch_backend(progress: Progress) -> Iterator[None]:
    """Watch a capture outside of any ORTModule.

    Only the call of the backend shows that the capture is ours; Dynamo's time before it counts, too.
    """
    if getattr(_thread, "active", None) is not None:
        yield
        return
    started = getattr(_thread, "unclaimed_start", None)
    with progress:
        progress.begin(started)
        yield


def stage(name: str) -> None:
    """Name the stage that this thread's capture is in."""
    active: Progress | None = getattr(_thread, "active", None)
    if active is not None:
        active.stage = name


def _on_start(_: Any) -> None:
    active: Progress | None = getattr(_thread, "active", None)
    if active is not None:
        active.begin()
    else:
        _thread.unclaimed_start = time.perf_counter()


def _on_end(_: Any) -> None:
    _thread.unclaimed_start = None
    active: Progress | None = getattr(_thread, "active", None)
    if active is not None:
        active.end()


def add_captured(code: types.CodeType) -> None:
    """The module that runs in this thread has a capture of this code."""
    active: Progress | None = getattr(_thread, "active", None)
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
