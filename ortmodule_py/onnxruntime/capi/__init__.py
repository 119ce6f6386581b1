"""Modules of onnxruntime that programs import names from.

They are imported with this package, under whichever name a program has given to it: programs write
`onnxruntime.capi.onnxruntime_pybind11_state.Fail` without importing the module.
"""

from __future__ import annotations

from . import (
    _pybind_state as _pybind_state,
    onnxruntime_inference_collection as onnxruntime_inference_collection,
    onnxruntime_pybind11_state as onnxruntime_pybind11_state,
)
