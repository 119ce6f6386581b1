"""Functions of onnxruntime's module."""

from __future__ import annotations

import platform
from collections.abc import Mapping

from ortmodule_py import _inference
from ortmodule_py.inference import cuda
from ortmodule_py.inference.errors import InvalidArgument
from ortmodule_py.inference.model_facts import OrtArenaCfg, OrtMemoryInfo
from ortmodule_py.inference.notices import Log
from ortmodule_py.inference.providers import get_available_providers
from ortmodule_py.inference.seeds import set_seed

ONNXRUNTIME_VERSION = "1.32.0"

__all__ = [
    "create_and_register_allocator",
    "create_and_register_allocator_v2",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "get_build_info",
    "get_device",
    "get_version_string",
    "has_collective_ops",
    "preload_dlls",
    "print_debug_info",
    "register_execution_provider_library",
    "set_seed",
    "unregister_execution_provider_library",
]


def get_device() -> str:
    """ "GPU" where sessions can run on CUDA, else "CPU"."""
    return "GPU" if cuda.is_available() else "CPU"


def get_version_string() -> str:
    """The release of onnxruntime whose names this package has."""
    return ONNXRUNTIME_VERSION


def get_build_info() -> str:
    """What this is, in one line."""
    name = f"ortmodule_py {_inference.__version__}"
    return f"ORT Build Info: {name}, with the names of {ONNXRUNTIME_VERSION}"


def has_collective_ops() -> bool:
    """Whether models may use operators that talk to other processes: no."""
    return False


def register_execution_provider_library(registration_name: str, library_path: str) -> None:
    """Raises NotImplementedError: plug-ins are for onnxruntime's binary interface."""
    raise NotImplementedError(
        f"[providers] plug-ins cannot be loaded, but found '{registration_name}' at "
        f"{library_path!r}; sessions run on {get_available_providers()}"
    )


def unregister_execution_provider_library(registration_name: str) -> None:
    """Raises InvalidArgument: nothing is registered."""
    raise InvalidArgument(
        f"[providers] a library must be registered first, but found '{registration_name}'"
    )


def enable_telemetry_events() -> None:
    """Accepted; nothing is reported to anyone."""


def disable_telemetry_events() -> None:
    """Accepted; nothing is reported to anyone."""


def create_and_register_allocator(
    mem_info: OrtMemoryInfo, arena_cfg: OrtArenaCfg | None = None
) -> None:
    """Accepted: a session's memory is planned by itself."""
    Log().once("allocator", "a registered allocator is not used: each session plans its memory")


def create_and_register_allocator_v2(
    provider_type: str,
    mem_info: OrtMemoryInfo,
    provider_options: Mapping[str, str] | None = None,
    arena_cfg: OrtArenaCfg | None = None,
) -> None:
    """Accepted; see create_and_register_allocator."""
    create_and_register_allocator(mem_info, arena_cfg)


def preload_dlls(
    cuda: bool = True, cudnn: bool = True, msvc: bool = True, directory: str | None = None
) -> None:
    """Accepted: there are no libraries of devices to load."""


def print_debug_info() -> None:
    """Prints versions, for reports of errors."""
    import numpy as np

    print(get_build_info())
    print(f"platform: {platform.platform()}, Python {platform.python_version()}")
    print(f"numpy {np.__version__}, providers {get_available_providers()}")
