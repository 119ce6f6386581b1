"""How fast this machine multiplies matrices and moves memory: measured once, kept in a file.

The memory optimizer weighs what a recomputation costs by these rates. They choose between plans that
all give the same bits, so a rate that is off costs time at worst, never a result.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

VARIABLE = "ORTMODULE_MACHINE_RATES"
CACHE = "ORTMODULE_CACHE_DIR"


@dataclass(frozen=True)
class Rates:
    """Rates of one machine at a number of threads."""

    flops_per_us: float
    """Floating point operations of a float32 matrix product."""
    bytes_per_us: float
    """Bytes read and written by a copy that does not fit the caches."""


def machine_rates() -> Rates | None:
    """The measured rates; None if `ORTMODULE_MACHINE_RATES=estimate` asks for the built-in ones.

    Raises:
        ValueError: the variable is neither `measure` nor `estimate`.
    """
    mode = os.environ.get(VARIABLE, "measure").strip().lower()
    if mode not in ("measure", "estimate"):
        raise ValueError(f"[{VARIABLE}] the value must be measure or estimate, but found {mode!r}")
    if mode == "estimate":
        return None
    path = cache_file()
    known = _read(path)
    if known is None:
        known = measure()
        _write(path, known)
    return known


def cache_file() -> Path:
    """Where the rates of this machine and number of threads are kept."""
    folder = os.environ.get(CACHE) or Path.home() / ".cache" / "ortmodule_py"
    cpu = "".join(c if c.isalnum() else "-" for c in _processor())[:60]
    return Path(folder) / f"rates-{cpu}-{torch.get_num_threads()}.json"


def measure() -> Rates:
    """Takes about 50 ms; the best of a few runs, since others may use the machine."""
    size = 512
    a, b = torch.ones(size, size), torch.ones(size, size)
    product = torch.empty(size, size)
    source, target = torch.ones(2**22), torch.empty(2**22)
    with torch.no_grad():
        product_us = _best_us(lambda: torch.mm(a, b, out=product))
        copy_us = _best_us(lambda: target.copy_(source))
    return Rates(2 * size**3 / product_us, 2 * source.nbytes / copy_us)


def _best_us(run: Callable[[], object]) -> float:
    run()
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return max(best * 1e6, 1e-3)


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _read(path: Path) -> Rates | None:
    """The rates of the file; None if it is missing, damaged or absurd: then they are measured."""
    try:
        values = json.loads(path.read_text())
        rates = Rates(float(values["flops_per_us"]), float(values["bytes_per_us"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    sound = 1e2 < rates.flops_per_us < 1e9 and 1e1 < rates.bytes_per_us < 1e8
    return rates if sound else None


def _write(path: Path, rates: Rates) -> None:
    """A file that cannot be written costs a measurement next time."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            json.dump(asdict(rates), file)
        os.replace(file.name, path)
