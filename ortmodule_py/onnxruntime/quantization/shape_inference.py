"""Preparation of models: what programs import from onnxruntime's module of this name."""

from __future__ import annotations

from ortmodule_py.quantization import quant_pre_process as quant_pre_process
