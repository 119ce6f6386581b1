"""What a part of the check is, and what it may use."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

Row = dict[str, Any]
"""One line of the table. `ok` is False where something is wrong, and `why` says what."""

PART_SECONDS = 480
"""No part takes longer: it stops where it is and goes on with the next run."""


@dataclass
class Context:
    """Where a part runs and how far it came before."""

    device: torch.device
    emulated: bool
    """The CUDA kernels run on the host: results count, times and torch's counters do not."""
    done: set[str] = field(default_factory=set)
    """Names of the rows that an earlier run has finished."""
    deadline: float = float("inf")
    """Of `time.monotonic`."""

    @property
    def late(self) -> bool:
        """Whether the part must stop."""
        return time.monotonic() > self.deadline

    def todo(self, names: list[str]) -> Iterator[str]:
        """The names that are left, as long as there is time."""
        for name in names:
            if self.late:
                return
            if name not in self.done:
                yield name


@dataclass(frozen=True)
class Part:
    """A part: what it is, the rows that it has, and how one of them is made."""

    name: str
    what: str
    rows: Callable[[], list[str]]
    run: Callable[[str, Context], Row]
    on_host: bool = False
    """Whether it is of use under the emulation, too."""
