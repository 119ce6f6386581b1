"""The seed of random operators."""

from __future__ import annotations

_seed = 0


def set_seed(seed: int) -> None:
    """Sets the seed of the random operators in sessions that are opened from now on."""
    global _seed
    _seed = int(seed)


def current_seed() -> int:
    """What set_seed was called with; 0: sessions draw a seed of their own."""
    return _seed
