"""The counting allocator in front of torch's CPU allocator."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class CpuMemoryStats:
    """Counters of the allocator since its installation."""

    current_bytes: int
    peak_bytes: int
    allocation_count: int


def counters() -> Any:
    """The extension's counters."""
    return importlib.import_module("ortmodule_py._C").cpu_memory


def install_counting_allocator() -> None:
    """Start counting, for the rest of the process. Further calls have no effect."""
    counters().install()


def cpu_memory_stats() -> CpuMemoryStats:
    """The current counters; raises ``RuntimeError`` if the allocator is not installed."""
    found = counters()
    if not found.installed():
        raise RuntimeError("call install_counting_allocator() before the first tensor is made")
    return CpuMemoryStats(
        current_bytes=found.current_bytes(),
        peak_bytes=found.peak_bytes(),
        allocation_count=found.allocation_count(),
    )
