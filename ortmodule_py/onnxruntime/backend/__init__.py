"""onnxruntime.backend: sessions behind ONNX's own interface for runtimes (onnx.backend.base)."""

from __future__ import annotations

from ortmodule_py.onnxruntime.backend.backend import (
    OnnxRuntimeBackend as OnnxRuntimeBackend,
    is_compatible as is_compatible,
    prepare as prepare,
    run as run,
    supports_device as supports_device,
)
