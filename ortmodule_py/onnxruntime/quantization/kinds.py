"""Types and formats: what programs import from the module `quant_utils` of onnxruntime."""

from __future__ import annotations

from ortmodule_py.quantization import (
    QuantFormat as QuantFormat,
    QuantizationMode as QuantizationMode,
    QuantType as QuantType,
)
