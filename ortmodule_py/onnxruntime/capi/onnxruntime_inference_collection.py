"""The classes of onnxruntime that are written in Python."""

from __future__ import annotations

from ortmodule_py.inference.io_binding import IOBinding as IOBinding
from ortmodule_py.inference.ort_value import (
    OrtDevice as OrtDevice,
    OrtDeviceVendorId as OrtDeviceVendorId,
    OrtValue as OrtValue,
    copy_tensors as copy_tensors,
)
from ortmodule_py.inference.session import InferenceSession as InferenceSession

Session = InferenceSession


def get_ort_device_type(device_type: str) -> int:
    """The number of a kind of device: 0 for "cpu", 1 for "cuda"."""
    return OrtDevice.make(device_type, 0).device_type()
