"""Smaller models with the names of onnxruntime.quantization, and a report of what it costs."""

from __future__ import annotations

from typing import Any

from ortmodule_py.quantization.calibrate import (
    MinMaxCalibrater,
    TensorData,
    TensorsData,
    create_calibrator,
)
from ortmodule_py.quantization.dynamic import quantize_dynamic
from ortmodule_py.quantization.kinds import (
    CalibrationDataReader,
    CalibrationMethod,
    QuantFormat,
    QuantizationMode,
    QuantType,
)
from ortmodule_py.quantization.report import (
    NodeRecord,
    OutputError,
    QuantizationReport,
    WeightError,
)
from ortmodule_py.quantization.static import quantize_static

__all__ = [
    "CalibrationDataReader",
    "CalibrationMethod",
    "MinMaxCalibrater",
    "NodeRecord",
    "OutputError",
    "QuantFormat",
    "QuantType",
    "QuantizationMode",
    "QuantizationReport",
    "TensorData",
    "TensorsData",
    "WeightError",
    "create_calibrator",
    "quantize_dynamic",
    "quantize_static",
]

# Names of onnxruntime.quantization that are left out, and what to do instead.
_ELSEWHERE = {
    "quant_pre_process": "models need no preparation here: the session optimizes them when it loads",
    "quantize": "call quantize_dynamic or quantize_static",
    "StaticQuantConfig": "pass the options to quantize_static",
    "DynamicQuantConfig": "pass the options to quantize_dynamic",
    "get_qdq_config": "pass the options to quantize_static",
    "QDQQuantizer": "call quantize_static",
    "CudaQuantizer": "quantized models are for the CPU",
    "load_tensors_data": "pass calibration_cache_path to quantize_static",
    "save_tensors_data": "pass calibration_cache_path to quantize_static",
    "write_calibration_table": "tables for TensorRT are not written",
    "CalibraterBase": "call quantize_static, which calibrates",
}


def __getattr__(name: str) -> Any:
    if name in _ELSEWHERE:
        raise AttributeError(
            f"[quantization] '{name}' of onnxruntime is left out: {_ELSEWHERE[name]}"
        )
    raise AttributeError(f"module 'ortmodule_py.quantization' has no attribute '{name}'")
