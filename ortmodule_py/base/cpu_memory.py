"""The counting allocator in front of torch's CPU allocator."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class CpuMemoryStats:
    """Counters of the allocator since it was installed."""

    current_bytes: int
    peak_bytes: int
    allocation_count: int


def counters() -> Any:
    return importlib.import_module("ortmodule_py._C").cpu_memory


def install_counting_allocator() -> None:
    """Start counting. Calling it again does nothing; it cannot be undone in this process."""
    counters().install()


def cpu_memory_stats() -> CpuMemoryStats:
    """The counters as they are now; raises ``RuntimeError`` when nothing is being counted."""
    found = counters()
    if not found.installed():
        raise RuntimeError("call install_counting_allocator() before the first tensor is made")
    return CpuMemoryStats(
        current_bytes=found.current_bytes(),
        peak_bytes=found.peak_bytes(),
        allocation_count=found.allocation_count(),
    )
