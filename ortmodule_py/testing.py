"""Exact memory measurements on the CPU, for tests and benchmarks.

PyTorch has no ``max_memory_allocated`` for the CPU. ``install_counting_allocator`` puts a counting
allocator in front of torch's allocator for the rest of the process. It counts the requested bytes of
every tensor storage, of eager, compiled and ORTModule code and from any thread. Storages allocated
before the call are not counted, so call it before the first tensor.

Memory from elsewhere (scratch of oneDNN or OpenMP, heap fragmentation) shows in the resident set only:
``reset_vm_hwm`` and ``vm_hwm_bytes``.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch  # noqa: F401  (loads the libraries that the extension needs)

from ortmodule_py.base.cpu_memory import (
    CpuMemoryStats,
    counters,
    cpu_memory_stats,
    install_counting_allocator,
)

__all__ = [
    "CpuMemoryStats",
    "PeakMeasurement",
    "cpu_memory_stats",
    "install_counting_allocator",
    "measure_peak",
    "reset_vm_hwm",
    "trace_allocations",
    "vm_hwm_bytes",
    "vm_rss_bytes",
]

_active: list[PeakMeasurement] = []


@dataclass(eq=False)
class PeakMeasurement:
    """The result of ``measure_peak``; complete at the end of its block."""

    start_bytes: int
    peak_bytes: int

    @property
    def peak_above_start(self) -> int:
        """Peak bytes minus the bytes that were live at the start."""
        return self.peak_bytes - self.start_bytes


def _fold_peak(peak: int) -> None:
    for measurement in _active:
        measurement.peak_bytes = max(measurement.peak_bytes, peak)


@contextlib.contextmanager
def measure_peak() -> Iterator[PeakMeasurement]:
    """Measure a block: bytes at its start and at its peak. Blocks may be nested."""
    before = cpu_memory_stats()
    _fold_peak(before.peak_bytes)
    counters().reset_peak()
    measurement = PeakMeasurement(before.current_bytes, before.current_bytes)
    _active.append(measurement)
    try:
        yield measurement
    finally:
        _fold_peak(cpu_memory_stats().peak_bytes)
        _active.remove(measurement)


@contextlib.contextmanager
def trace_allocations() -> Iterator[list[int]]:
    """Record every allocation (positive) and free (negative) of a block, in bytes and in order.

    The yielded list is filled at the end of the block.
    """
    cpu_memory_stats()
    trace: list[int] = []
    counters().start_trace()
    try:
        yield trace
    finally:
        trace.extend(counters().stop_trace())


def reset_vm_hwm(*, trim: bool = True) -> bool:
    """Reset the kernel's high-water mark of the resident set to the current size.

    With ``trim`` free pages of the heap are returned first, so that they do not hide later growth.
    Returns ``False`` if the kernel does not allow it.
    """
    if trim:
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _status_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


def vm_hwm_bytes() -> int:
    """High-water mark of the resident set since the start or the last ``reset_vm_hwm``."""
    return _status_bytes("VmHWM")


def vm_rss_bytes() -> int:
    """The current resident set."""
    return _status_bytes("VmRSS")
