"""The rates of a device for matrix products and copies, measured once and cached in a file.

The memory optimizer estimates the time of a recomputation from them. All plans give the same bits, so a
wrong rate may cost time, but never changes a result.
"""

from __future__ import annotations

import contextlib
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from ortmodule_py.base.cache_files import cache_path, file_name, read_json, write_json
from ortmodule_py.base.environment import choice
from ortmodule_py.base.ranks import agreed

VARIABLE = "ORTMODULE_MACHINE_RATES"


_CPU = torch.device("cpu")
_GPU_RUNS = 4
"""Between two events, so that the launch hardly counts."""


@dataclass(frozen=True)
class Rates:
    """Rates of one CPU with a number of threads, or of one GPU model."""

    flops_per_us: float
    """Floating point operations of a float32 matrix product."""
    bytes_per_us: float
    """Bytes read and written by a copy that does not fit into the caches."""
    flops16_per_us: float = 0.0
    """Of a product in bfloat16 on a GPU; 0 for a CPU, where it counts as one of float32."""
    to_host_bytes_per_us: float = 0.0
    """Of a copy from a GPU to registered memory of the host; 0 for a CPU."""
    to_device_bytes_per_us: float = 0.0
    """Of a copy the other way."""


def machine_rates(device: torch.device = _CPU) -> Rates | None:
    """The measured rates; with several ranks those of the first one with such a device. None for the
    built-in estimates: with `ORTMODULE_MACHINE_RATES=estimate`, and if they are not cached while a CUDA
    graph is captured.

    Raises:
        ValueError: the variable is neither `measure` nor `estimate`.
    """
    if check_machine_rates() == "estimate":
        return None
    path = cache_file(device)
    known = _read(path, has_link=device.type == "cuda")
    if known is None:
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return None
        with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
            known = measure(device)
        write_json(path, asdict(known))
    # Other rates would lead to other plans; this machine's own stay in its file.
    return Rates(**agreed(path.name, asdict(known)))


def check_machine_rates() -> str:
    """The value of `ORTMODULE_MACHINE_RATES`.

    Raises:
        ValueError: it is neither `measure` nor `estimate`.
    """
    return choice(VARIABLE, ("measure", "estimate"), "the value must be measure or estimate")


def cache_file(device: torch.device = _CPU) -> Path:
    """The file of the rates of this CPU and number of threads, or of this GPU model and its TF32 setting."""
    if device.type == "cuda":
        name = file_name(torch.cuda.get_device_name(device))
        return cache_path(f"gpu-rates-{name}-{torch.backends.cuda.matmul.fp32_precision}.json")
    return cache_path(f"rates-{file_name(_processor())}-{torch.get_num_threads()}.json")


def measure(device: torch.device = _CPU) -> Rates:
    """Measures for about 50 ms; the best of a few runs, as other processes may use the machine."""
    on_gpu = device.type == "cuda"
    size, count = (2048, 2**25) if on_gpu else (512, 2**22)  # more than caches hold
    source, target = torch.ones(count, device=device), torch.empty(count, device=device)
    with torch.no_grad():
        flops = _product_rate(size, torch.float32, device)
        copy_us = _best_us(lambda: target.copy_(source), on_gpu)
        bytes_ = 2 * source.nbytes / copy_us
        if not on_gpu:
            return Rates(flops, bytes_)
        # So large that all of the GPU has work: at 2048 an H100 reached 60 % of what models reach.
        narrow = _product_rate(4096, torch.bfloat16, device)
        return Rates(flops, bytes_, narrow, *_link_rates(source))


def _product_rate(size: int, dtype: torch.dtype, device: torch.device) -> float:
    """Floating point operations per microsecond. Of random numbers: a GPU is faster on constant ones."""
    # A generator of its own, so that nobody's random numbers change.
    numbers = torch.Generator(device).manual_seed(0)
    a = torch.randn(size, size, device=device, generator=numbers).to(dtype)
    product = torch.empty_like(a)
    return 2 * size**3 / _best_us(lambda: torch.mm(a, a, out=product), device.type == "cuda")


def _link_rates(source: torch.Tensor) -> tuple[float, float]:
    """Bytes per microsecond from a GPU to the host and back."""
    pinned = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
    to_host_us = _best_us(lambda: pinned.copy_(source, non_blocking=True), on_gpu=True)
    to_device_us = _best_us(lambda: source.copy_(pinned, non_blocking=True), on_gpu=True)
    return source.nbytes / to_host_us, source.nbytes / to_device_us


def _best_us(run: Callable[[], object], on_gpu: bool) -> float:
    """On a GPU measured with events on the current stream of the current device."""
    run()
    measure_us = _gpu_us if on_gpu else _cpu_us
    return max(min(measure_us(run) for _ in range(5)), 1e-3)


def _cpu_us(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return (time.perf_counter() - start) * 1e6


def _gpu_us(run: Callable[[], object]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(_GPU_RUNS):
        run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e3 / _GPU_RUNS


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _read(path: Path, *, has_link: bool) -> Rates | None:
    """The rates in the file; None if it is missing or damaged, or its values are implausible."""
    values = read_json(path)
    try:
        rates = Rates(**{name: float(value) for name, value in values.items()})
    except (ValueError, TypeError, AttributeError):
        return None
    sound = 1e2 < rates.flops_per_us < 1e9 and 1e1 < rates.bytes_per_us < 1e8
    links = (rates.to_host_bytes_per_us, rates.to_device_bytes_per_us)
    linked = not has_link or all(1e1 < link < 1e7 for link in links)
    return rates if sound and linked else None
