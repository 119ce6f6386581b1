"""Room on Python's stack for captures.

Dynamo follows calls by calls of its own: about 30 frames of Python for each function that it inlines, and four
functions for a module with a hook. Python's limit of 1000 frames is that of 20 modules inside of each other, and
of fewer below a test runner or a trainer.
"""

from __future__ import annotations

import resource
import sys
import threading
from typing import Any

_ROOM = 6000
"""Frames below the one that starts a capture."""
_FRAME_BYTES = 1024
"""Of the thread's stack; 0.4 KiB were measured, and torch's own functions are called from the deepest one."""


class _Room:
    """Raises Python's recursion limit, which all threads share, while any thread is inside."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._before = 0

    def __enter__(self) -> None:
        needed = _depth() + min(_ROOM, _stack_bytes() // _FRAME_BYTES)
        with self._lock:
            if self._inside == 0:
                self._before = sys.getrecursionlimit()
            self._inside += 1
            if sys.getrecursionlimit() < needed:
                sys.setrecursionlimit(needed)

    def __exit__(self, *_: Any) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                sys.setrecursionlimit(self._before)


def _stack_bytes() -> int:
    """The smallest stack of a thread: Python's setting for new ones, or the limit of the process."""
    sizes = (threading.stack_size(), resource.getrlimit(resource.RLIMIT_STACK)[0])
    return min((size for size in sizes if size > 0), default=_ROOM * _FRAME_BYTES)


def _depth() -> int:
    """The frames of this thread."""
    frame, depth = sys._getframe(), 0
    while frame is not None:
        frame, depth = frame.f_back, depth + 1  # type: ignore[assignment]
    return depth


room_for_nested_calls = _Room()
"""A context around each capture."""
