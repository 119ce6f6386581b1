"""The names of `onnxruntime.training.optim`; see docs/migrating.md for each."""

from __future__ import annotations

from ortmodule_py.optim.fp16_optimizer import FP16_Optimizer as FP16_Optimizer
from ortmodule_py.optim.fused_adam import AdamWMode as AdamWMode, FusedAdam as FusedAdam
