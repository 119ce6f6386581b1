"""The record of one forward of a module: its runs and captures of pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

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
    passed: list[dict[int, int]] = field(default_factory=list)
    """Of each of `runs`: the bytes of the gradients that its backward passes on, by the run that made the
    argument; empty where nothing is sharded."""
    makers: dict[int, int] = field(default_factory=dict)
    """By address: the run that made a result."""
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

    def passed_by(self, arguments: Sequence[Any]) -> dict[int, int]:
        """The bytes of gradients that a run with these arguments passes on, by the run that made one.

        Others stay: those of leaves, and those that what runs between the pieces may keep.
        """
        passed: dict[int, int] = {}
        for argument in arguments:
            if not isinstance(argument, torch.Tensor) or argument.grad_fn is None:
                continue
            maker = self.makers.get(argument.data_ptr())
            if maker is not None:
                passed[maker] = passed.get(maker, 0) + argument.numel() * argument.element_size()
        return passed

    def made(self, results: Any) -> None:
        """The last of `runs` has made these."""
        for result in results if isinstance(results, (list, tuple)) else (results,):
            if isinstance(result, torch.Tensor) and result.numel():
                self.makers[result.data_ptr()] = len(self.runs) - 1
