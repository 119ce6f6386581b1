"""Smaller models with the names of onnxruntime.quantization, and a report of what it costs."""

from __future__ import annotations

from typing import Any

from ortmodule_py.quantization.calibrate import CalibraterBase, MinMaxCalibrater
from ortmodule_py.quantization.configurations import (
    DynamicQuantConfig,
    StaticQuantConfig,
    get_qdq_config,
    quant_pre_process,
    quantize,
)
from ortmodule_py.quantization.dynamic import quantize_dynamic
from ortmodule_py.quantization.histograms import (
    DistributionCalibrater,
    EntropyCalibrater,
    PercentileCalibrater,
    create_calibrator,
)
from ortmodule_py.quantization.kinds import (
    CalibrationDataReader,
    CalibrationMethod,
    QuantFormat,
    QuantizationMode,
    QuantType,
)
from ortmodule_py.quantization.ranges import (
    TensorData,
    TensorsData,
    load_tensors_data,
    save_tensors_data,
)
from ortmodule_py.quantization.report import (
    NodeRecord,
    OutputError,
    QuantizationReport,
    WeightError,
)
from ortmodule_py.quantization.static import quantize_static

__all__ = [
    "CalibraterBase",
    "CalibrationDataReader",
    "CalibrationMethod",
    "DistributionCalibrater",
    "DynamicQuantConfig",
    "EntropyCalibrater",
    "MinMaxCalibrater",
    "NodeRecord",
    "OutputError",
    "PercentileCalibrater",
    "QuantFormat",
    "QuantType",
    "QuantizationMode",
    "QuantizationReport",
    "StaticQuantConfig",
    "TensorData",
    "TensorsData",
    "WeightError",
    "create_calibrator",
    "get_qdq_config",
    "load_tensors_data",
    "quant_pre_process",
    "quantize",
    "quantize_dynamic",
    "quantize_static",
    "save_tensors_data",
]

# Names of onnxruntime.quantization that are left out, and what to do instead.
_ELSEWHERE = {
    "QDQQuantizer": "call quantize_static",
    "CudaQuantizer": "quantized models are for the CPU",
    "write_calibration_table": "tables for TensorRT are not written",
}


def __getattr__(name: str) -> Any:
    if name in _ELSEWHERE:
        raise AttributeError(
            f"[quantization] '{name}' of onnxruntime is left out: {_ELSEWHERE[name]}"
        )
    raise AttributeError(f"module 'ortmodule_py.quantization' has no attribute '{name}'")
