"""Ranges of values: what programs import from onnxruntime's module of this name."""

from __future__ import annotations

from ortmodule_py.quantization import (
    CalibraterBase as CalibraterBase,
    CalibrationDataReader as CalibrationDataReader,
    CalibrationMethod as CalibrationMethod,
    DistributionCalibrater as DistributionCalibrater,
    EntropyCalibrater as EntropyCalibrater,
    MinMaxCalibrater as MinMaxCalibrater,
    PercentileCalibrater as PercentileCalibrater,
    TensorData as TensorData,
    TensorsData as TensorsData,
    create_calibrator as create_calibrator,
    load_tensors_data as load_tensors_data,
    save_tensors_data as save_tensors_data,
)
