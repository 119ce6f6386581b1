"""Errors and classes under the name of onnxruntime's extension module."""

from __future__ import annotations

import sys
from typing import Any

from ortmodule_py.inference.errors import *  # noqa: F403


def __getattr__(name: str) -> Any:
    """Every other name of the package."""
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(sys.modules["ortmodule_py.onnxruntime"], name)
