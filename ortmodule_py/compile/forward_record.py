"""What one forward of a module ran and captured."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Any

from ortmodule_py import _C
from ortmodule_py.dynamo.settings import skip_counters


@dataclass(eq=False)
class ForwardRecord:
    """Filled by the compiler and its pieces while the module runs."""

    first_run: int = field(default_factory=_C.engine_runs)
    """How many runs of pieces this process had seen before."""
    runs: list[Any] = field(default_factory=list)
    """The compiled pieces (`_C.CompiledPiece`), once for each of their runs."""
    piece_runs: int = 0
    """How often pieces ran, in the engine or, as was reported, in eager PyTorch."""
    captures: int = 0
    """Pieces that are new, compiled or in eager PyTorch."""
    eager: bool = False
    """Something ran in eager PyTorch, as was reported now or earlier."""
    untraced: bool = False
    """Dynamo failed before any of the module had run, so that eager PyTorch ran all of it."""
    whole: bool = False
    """One compiled piece ran, which is all of the module."""
    _skips: tuple[int, int] = field(default_factory=skip_counters)

    def mark_untraced(self) -> None:
        """Dynamo failed on this forward, and eager PyTorch has run it."""
        self.untraced = True
        self._skips = skip_counters()

    def skipped_frame(self) -> bool:
        """Whether Dynamo has skipped a function because of something that it cannot trace."""
        return all(map(operator.gt, skip_counters(), self._skips))
