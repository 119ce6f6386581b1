"""onnxruntime.quantization: the names of ortmodule_py.quantization."""

from __future__ import annotations

from typing import Any

from ortmodule_py import quantization as _quantization
from ortmodule_py.quantization import *  # noqa: F403
from ortmodule_py.quantization import __all__ as __all__


def __getattr__(name: str) -> Any:
    return getattr(_quantization, name)
