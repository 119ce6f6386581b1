"""The same names as `onnxruntime_pybind11_state`."""

from __future__ import annotations

from typing import Any

from ortmodule_py.onnxruntime.capi import onnxruntime_pybind11_state as _state

__all__ = _state.__all__


def __getattr__(name: str) -> Any:
    return getattr(_state, name)
