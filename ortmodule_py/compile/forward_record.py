"""The record of one forward of a module: its runs and captures of pieces."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ortmodule_py import _C

TRAINING, EVALUATION = MODES = ("training", "evaluation")
"""A forward in training mode with gradients, and all others."""


@dataclass(eq=False)
class ForwardRecord:
    """Filled by the compiler and its pieces while the module runs."""

    mode: str = TRAINING
    """One of MODES."""
    first_run: int = field(default_factory=_C.engine_runs)
    """The process's runs of pieces before this forward."""
    runs: list[Any] = field(default_factory=list)
    """The compiled pieces (`_C.CompiledPiece`), one entry per run."""
    parameters: list[frozenset[int]] = field(default_factory=list)
    """The ids of the parameters of each of `runs`; empty where nothing is sharded."""
    piece_runs: int = 0
    """Runs of pieces, in the engine or (as reported) in eager PyTorch."""
    captures: int = 0
    """New pieces, compiled or in eager PyTorch."""
    eager: bool = False
    """Whether a part ran in eager PyTorch (reported now or earlier)."""
    untraced: bool = False
    """Whether Dynamo failed before any of the module ran, so that eager PyTorch ran all of it."""
    whole: bool = False
    """Whether one compiled piece ran the whole module."""
    seconds: float | None = None
    """Of the whole forward; None until it has ended."""
    engine_seconds: float = 0.0
    """Of them in compiled pieces."""
