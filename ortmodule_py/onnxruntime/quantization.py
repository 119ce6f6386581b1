"""Quantization is not part of this package yet."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise ImportError(
        f"ortmodule_py.onnxruntime.quantization has no {name} yet: write the quantized model with "
        "onnxruntime.quantization and open the file here"
    )
