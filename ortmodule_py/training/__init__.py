"""The names of `onnxruntime.training`, so that an old script changes one word of its imports."""

from __future__ import annotations

from . import gone_names, optim, ortmodule  # noqa: F401
from .ortmodule import DebugOptions, LogLevel, ORTModule

gone_names.install(__name__)

# Without `optim`: a star import would hide the script's own.
__all__ = ["DebugOptions", "LogLevel", "ORTModule"]
