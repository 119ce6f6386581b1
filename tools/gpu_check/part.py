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


MOST_TRIES = 2
"""A row during which the process ended runs once more: something else may have ended it."""


@dataclass
class Context:
    """Where a part runs and how far it came before."""

    device: torch.device
    emulated: bool
    """The CUDA kernels run on the host: results count, times and torch's counters do not."""
    known: dict[str, Row] = field(default_factory=dict)
    """The rows of the part so far."""
    deadline: float = float("inf")
    """Of `time.monotonic`."""

    def lost(self) -> bool:
        """Whether an error has broken the device for the rest of this process."""
        if self.device.type != "cuda":
            return False
        try:
            torch.cuda.synchronize(self.device)
        except RuntimeError:
            return True
        return False

    def todo(self, names: list[str]) -> Iterator[str]:
        """The names that are left, as long as there is time for the longest row so far: first those
        that never ran, then what failed, last what ended the process."""
        waiting = [name for name in names if self._turn(name) is not None]
        began = False
        for name in sorted(waiting, key=lambda name: self._turn(name) or 0):
            left = self.deadline - time.monotonic()
            longest = max((row["seconds"] for row in self.known.values()), default=0.0)
            if left <= 0 or (began and left < longest):
                return
            began = True
            yield name

    def _turn(self, name: str) -> int | None:
        """When this row comes, or None if it need not run."""
        row = self.known.get(name)
        if row is None:
            return 0
        if "tries" in row:
            return None if row["tries"] >= MOST_TRIES else 2
        return None if row["ok"] else 1


def began(row: Row | None) -> Row:
    """What stands for a row while it runs, and stays if the process ends."""
    tries = (row or {}).get("tries", 0) + 1
    return {"ok": False, "why": "the process ended during this row", "tries": tries, "seconds": 0.0}


@dataclass(frozen=True)
class Part:
    """A part: what it is, the rows that it has, and how one of them is made."""

    name: str
    what: str
    rows: Callable[[], list[str]]
    run: Callable[[str, Context], Row]
    on_host: bool = False
    """Whether it is of use under the emulation, too."""
