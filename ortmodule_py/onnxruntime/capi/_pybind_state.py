"""The same names as `onnxruntime_pybind11_state`."""

from __future__ import annotations

from ortmodule_py.onnxruntime.capi.onnxruntime_pybind11_state import *  # noqa: F403
from ortmodule_py.onnxruntime.capi.onnxruntime_pybind11_state import __getattr__ as __getattr__
