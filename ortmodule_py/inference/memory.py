"""What sessions say about their memory, and the options that decide on it."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ortmodule_py import _inference
from ortmodule_py.inference import html
from ortmodule_py.inference.cuda import is_on
from ortmodule_py.inference.errors import InvalidArgument

if TYPE_CHECKING:
    from ortmodule_py.inference.options import SessionOptions

UNITS = {"": 1, "b": 1}
UNITS |= {f"{prefix}b": 1000**power for power, prefix in enumerate("kmgt", start=1)}
UNITS |= {f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgt", start=1)}
SHRINKAGE = "memory.enable_memory_arena_shrinkage"


@dataclass(frozen=True)
class MemoryReport:
    """What a run takes, in bytes, known before it runs.

    `block_bytes` is the block that holds all temporaries (0 without `enable_mem_pattern`), `peak_bytes`
    what the run allocates at its peak, outputs included; `total_bytes` adds the weights. `exact` is
    False if a library may allocate more. `parts`: into how many the session's memory limit cuts the
    batch. Feeds belong to the caller.
    """

    weights_bytes: int
    block_bytes: int
    outputs_bytes: int
    peak_bytes: int
    total_bytes: int
    exact: bool
    parts: int = 1

    def _repr_html_(self) -> str:
        """For notebooks: what the bytes are for."""
        rows = [
            ("weights", self.weights_bytes),
            ("block of temporaries", self.block_bytes),
            ("outputs", self.outputs_bytes),
            ("peak of a run" + ("" if self.exact else ", at least"), self.peak_bytes),
            ("weights and peak", self.total_bytes),
        ]
        return html.block(html.table(("memory of a run", "bytes"), rows))


def bytes_of(value: Any, what: str) -> int:
    """A number of bytes, or text such as "512MiB" or "1.5 GB". Raises InvalidArgument."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", str(value))
    unit = UNITS.get(match[2].lower()) if match and not isinstance(value, bool) else None
    if match is None or unit is None or float(match[1]) * unit < 1:
        raise InvalidArgument(
            f"[memory] {what} must be a number of bytes such as 536870912 or '512MiB', but found {value!r}"
        )
    number = int(match[1]) * unit if match[1].isdigit() else int(float(match[1]) * unit)
    return min(number, sys.maxsize)  # onnxruntime's default gpu_mem_limit is the largest size_t


def memory_options(
    session: SessionOptions, provider: Mapping[str, str], limit: Any
) -> _inference.MemoryOptions:
    """The options of a session and of its provider in the engine's terms; `limit` goes before theirs."""
    options = _inference.MemoryOptions()
    options.keep_block = session.enable_cpu_mem_arena and is_on(provider.get("use_arena", "1"))
    options.one_block = session.enable_mem_pattern
    options.reuse = session.enable_mem_reuse
    options.power_of_two_block = provider.get("arena_extend_strategy") == "kNextPowerOfTwo"
    if limit is None:
        limit = session._config.find("session.memory_limit") or provider.get("gpu_mem_limit")
    if limit is not None:
        options.limit_bytes = bytes_of(limit, "memory_limit")
    return options


def returns_memory(devices: str) -> bool:
    """Whether the entry SHRINKAGE of a run asks for its memory to be returned at its end."""
    for device in filter(None, devices.split(";")):
        if re.fullmatch(r"(cpu|gpu|cuda)(:\d+)?", device.strip()) is None:
            raise InvalidArgument(
                f"[RunOptions] {SHRINKAGE} must list devices as in 'cpu:0;gpu:0', but found {devices!r}"
            )
    return bool(devices)


def shapes_and_sizes(
    names: list[str], given: Mapping[str, Any]
) -> tuple[list[Any], dict[str, int]]:
    """Splits what a caller gives into shapes or arrays by input, and sizes by name."""
    shapes = {
        name: value if hasattr(value, "dtype") else _shape(name, value)
        for name, value in given.items()
        if name in names and not isinstance(value, int)
    }
    sizes = {name: value for name, value in given.items() if name not in shapes}
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool):
            raise InvalidArgument(
                f"[run] an input must be one of {names}, and the size of a name a number, but found "
                f"{name!r}: {size!r}"
            )
    return [shapes.get(name) for name in names], sizes


def _shape(name: str, value: Any) -> tuple[int, ...]:
    try:
        return tuple(int(size) for size in value)
    except (TypeError, ValueError):
        raise InvalidArgument(
            f"[run] input '{name}' must have a shape of numbers, but found {value!r}"
        ) from None
