"""Errors and classes under the name of onnxruntime's extension module."""

from __future__ import annotations

import sys
from typing import Any

from ortmodule_py.inference.errors import *  # noqa: F403
from ortmodule_py.inference.ort_value import (
    OrtDevice as _OrtDevice,
    OrtValueVector as OrtValueVector,
)


class OrtDevice(_OrtDevice):
    """A device from its numbers: kind, memory, vendor (may be left out), place among its kind."""

    def __init__(self, device_type: int, mem_type: int, *numbers: int) -> None:
        if len(numbers) not in (1, 2):
            raise TypeError(
                f"[OrtDevice] takes three or four numbers, but found {2 + len(numbers)}"
            )
        vendor_id, device_id = numbers if len(numbers) == 2 else (0, numbers[0])
        super().__init__(device_type, mem_type, vendor_id, device_id)

    @staticmethod
    def cpu() -> int:
        """The number of its kind."""
        return 0

    @staticmethod
    def cuda() -> int:
        """The number of its kind."""
        return 1

    @staticmethod
    def default_memory() -> int:
        """The number of the usual memory of a device."""
        return 0

    def mem_type(self) -> int:
        """The number of the kind of memory."""
        return self.device_mem_type()

    def vendor_id(self) -> int:
        """The vendor's PCI number, 0 for none."""
        return self.device_vendor_id()


def __getattr__(name: str) -> Any:
    """Every other name of the package."""
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(sys.modules["ortmodule_py.onnxruntime"], name)
