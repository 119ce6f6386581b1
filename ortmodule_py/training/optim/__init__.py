"""The names of `onnxruntime.training.optim`; docs/migrating.md says what became of each."""

from __future__ import annotations

from ortmodule_py.optim import AdamWMode, FP16_Optimizer, FusedAdam

__all__ = ["AdamWMode", "FP16_Optimizer", "FusedAdam"]
