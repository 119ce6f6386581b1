"""Quantization of files: what programs import from onnxruntime's module of this name."""

from __future__ import annotations

from ortmodule_py.quantization import (
    CalibrationDataReader as CalibrationDataReader,
    CalibrationMethod as CalibrationMethod,
    DynamicQuantConfig as DynamicQuantConfig,
    QuantFormat as QuantFormat,
    QuantizationMode as QuantizationMode,
    QuantType as QuantType,
    StaticQuantConfig as StaticQuantConfig,
    get_qdq_config as get_qdq_config,
    quantize as quantize,
    quantize_dynamic as quantize_dynamic,
    quantize_static as quantize_static,
)
