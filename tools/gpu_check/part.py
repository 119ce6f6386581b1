"""What a part of the check is, and what it may use. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Row = dict[str, Any]
"""One line of the table. `ok` is False where something is wrong, and `why` says what; `lines` are
printed below the table."""

PART_SECONDS = 480.0
"""No part takes longer: it is stopped and goes on with the next run."""


EVEN = 0.03
"""A ratio of times within 1 +- this is neither faster nor slower."""


@dataclass
class Context:
    """Where a part runs and how far it came before."""

    device: torch.device
    emulated: bool
    """The CUDA kernels run on the host: results count, times and torch's counters do not."""
    known: dict[str, Row] = field(default_factory=dict)
    """The rows of the part so far."""

    def lost(self) -> bool:
        """Whether an error has broken the device for the rest of this process."""
        if self.device.type != "cuda":
            return False
        import torch

        try:
            torch.cuda.synchronize(self.device)
        except RuntimeError:
            return True
        return False


@dataclass(frozen=True)
class Part:
    """A part: what it is, the rows that it has, and how one of them is made."""

    name: str
    what: str
    rows: Callable[[], list[str]]
    run: Callable[[str, Context], Row]
    on_host: bool = False
    """Whether it is of use under the emulation, too."""
    limit_s: float = PART_SECONDS
    """Seconds that a run of it may take on a fresh H100; it is killed after them."""
    row_s: float = 1.0
    """About what a row took on one, to share out processes."""
    timed: bool = False
    """Its rows are times of kernels or steps: nothing may run beside it."""
