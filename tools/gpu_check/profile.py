"""Times on the device: of steps by events, of kernels from torch's profiler."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

KINDS: tuple[tuple[str, str], ...] = (
    ("attention", r"flash|fmha|attention|mha_"),
    ("product", r"gemm|gemv|nvjet|cutlass|xmma|splitk|cublas|addmm"),
    ("convolution", r"conv|dgrad|wgrad|fprop|implicit|winograd"),
    ("optimizer", r"adam|multi_tensor"),
    ("rows", r"norm|softmax|cross_entropy|triton_(red|per)|reduce|row_sums|max_pool"),
    ("gather", r"gather|embedding|index|sort|radix|scan"),
    ("pointwise", r"pointwise|elementwise|triton_poi|dropout|vectorized"),
    ("copy", r"memcpy|memset|copy|transpose|cat_|concat|fill"),
)
"""Kinds of kernels by their names, the first that fits; for libraries' and generated ones, too."""


def kind_of(kernel: str) -> str:
    """The kind of a kernel."""
    name = kernel.lower()
    return next((kind for kind, pattern in KINDS if re.search(pattern, name)), "other")


def short_name(kernel: str) -> str:
    """A kernel's name without return type, namespaces, parameters and most of its template."""
    name = re.sub(r"^(void|static) ", "", kernel.replace("(anonymous namespace)::", ""))
    name = re.sub(r"\(.*", "", name)
    head, _, arguments = name.partition("<")
    head = head.rsplit("::", 1)[-1]
    arguments = re.sub(r"\w+::", "", arguments)
    return f"{head}<{arguments}"[:60] if arguments else head[:60]


@dataclass(frozen=True)
class KernelTime:
    """One kernel in a step."""

    name: str
    launches: float
    us: float
    """Of all launches of a step together."""


def by_kernel(events: Iterable[tuple[str, float]], steps: int) -> list[KernelTime]:
    """Sums (kernel, microseconds) of `steps` steps; the longest first."""
    sums: dict[str, list[float]] = defaultdict(list)
    for name, us in events:
        sums[short_name(name)].append(us)
    kernels = [KernelTime(n, len(all) / steps, sum(all) / steps) for n, all in sums.items()]
    return sorted(kernels, key=lambda kernel: -kernel.us)


def _recorded(run: Callable[[], Any]) -> list[tuple[str, float]]:
    """(kernel, microseconds) of what the GPU did meanwhile, in its order."""
    from torch.profiler import ProfilerActivity, profile

    # CUPTI stays: to set it up again takes a second, and is not safe beside CUDA graphs.
    os.environ["TEARDOWN_CUPTI"] = "0"
    torch.cuda.synchronize()
    # With the host's activities the profiler costs launches so much that the GPU waits.
    with profile(activities=[ProfilerActivity.CUDA]) as record:
        run()
        torch.cuda.synchronize()
    on_gpu = [e for e in record.events() or [] if e.device_type == torch.autograd.DeviceType.CUDA]
    on_gpu.sort(key=lambda e: e.time_range.start)
    return [(e.name, e.time_range.elapsed_us()) for e in on_gpu]


def profiled(step: Callable[[], Any], steps: int) -> list[KernelTime]:
    """The kernels of a step on the GPU, a mean over `steps` of them."""
    step()
    return by_kernel(_recorded(lambda: [step() for _ in range(steps)]), steps)


_MARK = "spin_kernel"
"""The kernel of `torch.cuda._sleep`."""


def apart(events: Iterable[tuple[str, float]]) -> list[list[tuple[str, float]]]:
    """The events between marks."""
    parts: list[list[tuple[str, float]]] = [[]]
    for name, us in events:
        if _MARK in name:
            parts.append([])
        else:
            parts[-1].append((name, us))
    return parts


def profiled_apart(passes: Sequence[Callable[[], Any]]) -> list[list[KernelTime]]:
    """The kernels of each pass, from one record of all of them: to start one takes long."""

    def marked() -> None:
        for number, run in enumerate(passes):
            if number > 0:
                torch.cuda._sleep(1)
            run()

    marked()
    found = [by_kernel(events, 1) for events in apart(_recorded(marked))]
    if len(found) != len(passes):
        raise RuntimeError(f"[profile] {len(passes)} passes must be apart, but found {len(found)}")
    return found


def block_ms(step: Callable[[], None], steps: int) -> float:
    """Milliseconds of a step, `steps` of them between two events with nothing waiting between."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(steps):
        step()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / steps


def as_json(kernels: list[KernelTime]) -> list[list[Any]]:
    """For a row: name, launches, microseconds."""
    return [[k.name, round(k.launches, 2), round(k.us, 2)] for k in kernels]


def beside(ours: list[list[Any]], theirs: list[list[Any]], most: int = 25) -> list[str]:
    """Lines of both profiles (`as_json`): sums by kind, then kernel by kernel."""

    def sums(kernels: list[list[Any]]) -> dict[str, list[float]]:
        kinds: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for name, launches, us in kernels:
            for key in (kind_of(name), "all"):
                kinds[key][0] += launches
                kinds[key][1] += us
        return kinds

    mine, other = sums(ours), sums(theirs)
    lines = [f"{'kind':12} {'ours us':>10} {'launches':>9}   {'compile us':>10} {'launches':>9}"]
    kinds = set(mine) | set(other)
    for kind in sorted(kinds, key=lambda k: (-max(mine[k][1], other[k][1]), k)):
        (a, b), (c, d) = mine[kind], other[kind]
        lines.append(f"{kind:12} {b:10.0f} {a:9.0f}   {d:10.0f} {c:9.0f}")
    for title, kernels in (("ours", ours), ("torch.compile", theirs)):
        lines.append(f"{title}: microseconds, launches, kernel")
        lines += [f"  {us:9.1f} {launches:7.1f}  {name}" for name, launches, us in kernels[:most]]
    return lines
