"""The name of `onnxruntime.training.optim.fp16_optimizer`."""

from __future__ import annotations

from ortmodule_py.optim.fp16_optimizer import FP16_Optimizer as FP16_Optimizer
