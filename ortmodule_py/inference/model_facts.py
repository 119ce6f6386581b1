"""What a session says about its model: inputs and outputs, metadata, memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from ortmodule_py.inference.enums import OrtAllocatorType, OrtDeviceMemoryType, OrtMemType


class NodeArg:
    """An input or output of a model.

    `type` is written as onnxruntime writes it ("tensor(float)"). `shape` has a number for a fixed
    size, a name for a named one, and None for an unknown one.
    """

    __slots__ = ("_sizes", "name", "type")

    name: str
    type: str
    _sizes: tuple[int | str | None, ...]

    def __init__(self, name: str, shape: Sequence[int | str | None], type: str) -> None:
        for key, value in (("name", name), ("type", type), ("_sizes", tuple(shape))):
            object.__setattr__(self, key, value)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"[NodeArg] what a model has cannot be changed, but found {name} set")

    @property
    def shape(self) -> list[int | str | None]:
        """The sizes, in a new list each time: programs put the sizes of a feed into it."""
        return list(self._sizes)

    def _facts(self) -> tuple[object, ...]:
        return self.name, self.type, self._sizes

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NodeArg) and self._facts() == other._facts()

    def __hash__(self) -> int:
        return hash(self._facts())

    def __repr__(self) -> str:
        return f"NodeArg(name='{self.name}', type='{self.type}', shape={self.shape})"


@dataclass
class ModelMetadata:
    """What the file says about the model."""

    producer_name: str = ""
    graph_name: str = ""
    domain: str = ""
    description: str = ""
    graph_description: str = ""
    version: int = 0
    custom_metadata_map: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class OrtMemoryInfo:
    """Where memory is."""

    name: str = "Cpu"
    allocator_type: OrtAllocatorType = OrtAllocatorType.ORT_ARENA_ALLOCATOR
    device_id: int = 0
    mem_type: OrtMemType = OrtMemType.DEFAULT
    device_mem_type: OrtDeviceMemoryType = OrtDeviceMemoryType.DEFAULT
    device_vendor_id: int = 0

    @staticmethod
    def create_v2(
        name: str,
        device_type: int,
        vendor_id: int,
        device_id: int,
        memory_type: OrtDeviceMemoryType,
        alignment: int,
        allocator_type: OrtAllocatorType,
    ) -> OrtMemoryInfo:
        """The same from onnxruntime's newer description."""
        return OrtMemoryInfo(
            name, allocator_type, device_id, OrtMemType.DEFAULT, memory_type, vendor_id
        )


def memory_info(device: int) -> OrtMemoryInfo:
    """Of the host, or of the GPU of that number."""
    if device < 0:
        return OrtMemoryInfo()
    return OrtMemoryInfo("Cuda", device_id=device, device_vendor_id=0x10DE)


class OrtArenaCfg:
    """Accepted: the memory of a run is planned, so that nothing grows by chunks.

    Either a dict of onnxruntime's keys, or its four numbers: `max_mem`, `arena_extend_strategy`,
    `initial_chunk_size_bytes`, `max_dead_bytes_per_chunk`.
    """

    max_mem: int
    arena_extend_strategy: int
    initial_chunk_size_bytes: int
    max_dead_bytes_per_chunk: int
    initial_growth_chunk_size_bytes: int
    max_power_of_two_extend_bytes: int

    def __init__(self, *args: object) -> None:
        keys = tuple(OrtArenaCfg.__annotations__)
        values = dict.fromkeys(keys, -1) | {"max_mem": 0}
        if len(args) == 1 and isinstance(args[0], dict):
            unknown = [key for key in args[0] if key not in keys]
            if unknown:
                raise ValueError(f"[OrtArenaCfg] keys must be {keys}, but found {unknown}")
            values |= args[0]
        elif len(args) == 4:
            values |= zip(keys, args, strict=False)  # type: ignore[arg-type]
        else:
            raise TypeError(f"[OrtArenaCfg] takes a dict or four numbers, but found {args}")
        for key, value in values.items():
            setattr(self, key, int(value))
