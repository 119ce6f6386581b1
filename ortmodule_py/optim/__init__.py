"""Optimizers: `FusedAdam`, and `FP16_Optimizer` for models in 16-bit floats.

Both work with any model, wrapped or not, on the CPU and on CUDA devices.
"""

from __future__ import annotations

from .fp16_optimizer import FP16_Optimizer
from .fused_adam import AdamWMode, FusedAdam
from .loss_scale import LossScale

__all__ = ["AdamWMode", "FP16_Optimizer", "FusedAdam", "LossScale"]
