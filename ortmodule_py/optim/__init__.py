"""Optimizers: `FusedAdam` and, for models in 16-bit floats, `FP16_Optimizer`.

Neither needs an ORTModule; both work with any model on the CPU or on CUDA devices.
"""

from __future__ import annotations

from .fp16_optimizer import FP16_Optimizer
from .fused_adam import AdamWMode, FusedAdam
from .loss_scale import LossScale

__all__ = ["AdamWMode", "FP16_Optimizer", "FusedAdam", "LossScale"]
