"""The names of `onnxruntime.training.optim.fused_adam`."""

from __future__ import annotations

from ortmodule_py.optim.fused_adam import AdamWMode as AdamWMode, FusedAdam as FusedAdam
