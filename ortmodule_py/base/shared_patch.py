"""A patch of what all threads share, as Dynamo's configuration is in torch before 2.13."""

from __future__ import annotations

import threading
from typing import Any


class SharedPatch:
    """The first thread in makes the patch, the last one out takes it back."""

    def __init__(self, patch: Any) -> None:
        self._patch = patch
        self._lock = threading.Lock()
        self._inside = 0

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._patch.__enter__()
            self._inside += 1

    def __exit__(self, *error: Any) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._patch.__exit__(*error)
