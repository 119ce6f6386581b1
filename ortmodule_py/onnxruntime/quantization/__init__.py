"""onnxruntime.quantization: the names of ortmodule_py.quantization, also in modules of its names."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from ortmodule_py import quantization as _quantization

# Before the names: the function `quantize` takes the place of the module.
for _name in ("calibrate", "kinds", "quantize", "shape_inference"):
    importlib.import_module(f"{__name__}.{_name}")
quant_utils = sys.modules[f"{__name__}.quant_utils"] = sys.modules[f"{__name__}.kinds"]

from ortmodule_py.quantization import *  # noqa: E402, F403
from ortmodule_py.quantization import __all__ as __all__  # noqa: E402


def __getattr__(name: str) -> Any:
    return getattr(_quantization, name)
