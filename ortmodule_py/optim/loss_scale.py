"""A dynamic loss scale."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

FLOAT32_MAX = 3.4028234663852886e38


@dataclass
class LossScale:
    """The factor of a loss that keeps 16-bit gradients from underflow.

    As in P. Micikevicius et al., "Mixed Precision Training" (arXiv:1710.03740): multiplied by
    `backoff_factor` if a gradient is not finite, by `growth_factor` after `growth_interval` steps in a
    row with finite gradients. Names and defaults are those of `torch.amp.GradScaler`.

    Args:
        scale: the current scale.
        growth_factor, backoff_factor: above 1 and below 1.
        growth_interval: finite steps before the scale grows.
        min_scale: lower bound of the scale.
        dynamic: False for a constant scale.
        good_steps: finite steps since the last overflow or growth.

    >>> scale = LossScale(scale=8.0, growth_interval=2)
    >>> scale.update(overflow=True), scale.scale
    (None, 4.0)
    >>> scale.update(overflow=False), scale.update(overflow=False), scale.scale
    (None, None, 8.0)
    """

    scale: float = 2.0**16
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    min_scale: float = 1.0
    dynamic: bool = True
    good_steps: int = 0

    def __post_init__(self) -> None:
        for name, value, holds, rule in (
            ("scale", self.scale, 0 < self.scale <= FLOAT32_MAX, "positive and finite in float32"),
            ("growth_factor", self.growth_factor, self.growth_factor > 1, "above 1"),
            ("backoff_factor", self.backoff_factor, 0 < self.backoff_factor < 1, "in (0, 1)"),
            ("growth_interval", self.growth_interval, self.growth_interval >= 1, "at least 1"),
            ("min_scale", self.min_scale, 0 < self.min_scale < math.inf, "positive and finite"),
        ):
            if not holds:
                raise ValueError(f"[LossScale] {name} must be {rule}, but found {value}")

    def update(self, *, overflow: bool) -> None:
        """Updates the scale after a step; `overflow`: it was skipped, as a gradient was not finite."""
        if not self.dynamic:
            return
        if overflow:
            lower = max(self.scale * self.backoff_factor, self.min_scale)
            self.scale, self.good_steps = min(lower, self.scale), 0
            return
        self.good_steps += 1
        if self.good_steps >= self.growth_interval:
            self.good_steps = 0
            if self.scale * self.growth_factor <= FLOAT32_MAX:
                self.scale *= self.growth_factor

    def state_dict(self) -> dict[str, Any]:
        """All fields as plain numbers."""
        return asdict(self)
