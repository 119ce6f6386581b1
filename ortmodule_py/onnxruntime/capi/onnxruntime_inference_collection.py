"""The classes of onnxruntime that are written in Python."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from ortmodule_py.inference.io_binding import IOBinding as IOBinding
from ortmodule_py.inference.ort_value import (
    OrtDevice as OrtDevice,
    OrtDeviceVendorId as OrtDeviceVendorId,
    OrtValue as OrtValue,
    copy_tensors as copy_tensors,
)
from ortmodule_py.inference.providers import normalized
from ortmodule_py.inference.session import InferenceSession as InferenceSession

Session = InferenceSession


def get_ort_device_type(device_type: str) -> int:
    """The number of a kind of device: 0 for "cpu", 1 for "cuda"."""
    return OrtDevice.make(device_type, 0).device_type()


def check_and_normalize_provider_args(
    providers: Sequence[str | tuple[str, Mapping[Any, Any]]] | None,
    provider_options: Sequence[Mapping[Any, Any]] | None,
    available_provider_names: Sequence[str],
) -> tuple[list[str], list[dict[str, str]]]:
    """Names of providers, and the options of each as text.

    Raises ValueError where their form is wrong. A name that is not available is a warning.
    """
    found = normalized(providers, provider_options)
    for name, _ in found:
        if name not in available_provider_names:
            warnings.warn(
                f"Specified provider '{name}' is not in available provider names."
                f"Available providers: '{', '.join(available_provider_names)}'",
                stacklevel=2,
            )
    return [name for name, _ in found], [options for _, options in found]
