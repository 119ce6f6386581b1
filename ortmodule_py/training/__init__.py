"""The names of `onnxruntime.training`, so that an old script changes one word of its imports."""

from __future__ import annotations

from .ortmodule import DebugOptions, LogLevel, ORTModule

__all__ = ["DebugOptions", "LogLevel", "ORTModule"]
