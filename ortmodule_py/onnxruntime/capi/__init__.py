"""Modules of onnxruntime that programs import names from.

They are imported with this package, under whichever name a program has given to it: programs write
`onnxruntime.capi.onnxruntime_pybind11_state.Fail` without importing the module.
"""

from __future__ import annotations

import importlib

for _name in ("_pybind_state", "onnxruntime_inference_collection", "onnxruntime_pybind11_state"):
    importlib.import_module(f"{__name__}.{_name}")
