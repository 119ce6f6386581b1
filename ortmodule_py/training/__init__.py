"""The names of `onnxruntime.training`: an old script changes `onnxruntime` to `ortmodule_py` in imports."""

from __future__ import annotations

from . import gone_names, optim, ortmodule  # noqa: F401
from .ortmodule import DebugOptions, LogLevel, ORTModule

gone_names.install(__name__)

# Not `optim`: a star import would shadow the script's own name.
__all__ = ["DebugOptions", "LogLevel", "ORTModule"]
