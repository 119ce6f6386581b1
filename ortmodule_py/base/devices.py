"""The device of a piece, and whether this build supports it."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from ortmodule_py import _C
from ortmodule_py.base.errors import CannotLower

EMULATION = "ORTMODULE_CUDA_EMULATION"


def piece_device(values: Iterable[Any]) -> torch.device:
    """The device of a piece, given its inputs; those that are not tensors are ignored.

    As in eager PyTorch, tensors without dims may be on the CPU while the others are on a GPU.

    Raises:
        CannotLower: the tensors are on several devices, or on one that this build does not support.
    """
    found: dict[torch.device, None] = {}
    numbers: dict[torch.device, None] = {}
    for value in values:
        if isinstance(value, Tensor):
            is_number = value.dim() == 0 and value.device.type == "cpu"
            (numbers if is_number else found)[value.device] = None
    devices = list(found or numbers) or [torch.device("cpu")]
    if len(devices) > 1:
        names = ", ".join(map(str, devices))
        raise CannotLower(f"the tensors of a piece must be on one device, but found {names}")
    reason = unsupported(devices[0])
    if reason is not None:
        raise CannotLower(reason)
    return devices[0]


@functools.cache
def unsupported(device: torch.device) -> str | None:
    """Why this build cannot run on the device, and what to do; None if it can."""
    if device.type == "cpu":
        return None
    if device.type != "cuda":
        return (
            f"the engine runs on CPUs and CUDA devices, but found {device}; move the model to one"
        )
    targets = _C.build_info()["cuda"].get("targets", [])
    if not targets:
        return (
            f"this build of ortmodule_py runs on the CPU only, but found a model on {device}; install "
            "a build with CUDA (ORTMODULE_CUDA=ON with nvcc and a CUDA build of torch)"
        )
    capability = torch.cuda.get_device_capability(device)
    if runs_on(targets, capability):
        return None
    major, minor = capability
    return (
        f"this build of ortmodule_py holds code for {', '.join(targets)}, but found "
        f"{torch.cuda.get_device_name(device)} with compute capability {major}.{minor}; build it with "
        f"TORCH_CUDA_ARCH_LIST={major}.{minor}"
    )


def runs_on(targets: Sequence[str], capability: tuple[int, int]) -> bool:
    """Whether code built for these CMake targets (`80-real`, `90a-real`, `90-virtual`, `120`) runs on a
    device of this compute capability.

    Machine code runs on the same and later minor versions of its major version, PTX on all later
    versions, code for an architecture with a letter on that architecture only (CUDA C++ Programming
    Guide, "Binary Compatibility" and "PTX Compatibility").
    """
    for target in targets:
        parts = re.fullmatch(r"(\d+)(\d)([af]?)(-real|-virtual)?", target)
        if parts is None:
            continue
        built = (int(parts[1]), int(parts[2]))
        if parts[3]:
            if built == capability:
                return True
            continue
        as_code = parts[4] != "-virtual" and built[0] == capability[0] and built <= capability
        as_ptx = parts[4] != "-real" and built <= capability
        if as_code or as_ptx:
            return True
    return False


def check_model(module: torch.nn.Module) -> str | None:
    """Why this build cannot run on the devices of the module's tensors; None if it can."""
    tensors = (*module.parameters(), *module.buffers())
    for device in dict.fromkeys(tensor.device for tensor in tensors):
        reason = None if device.type == "meta" else unsupported(device)
        if reason is not None:
            return reason
    return None


def check_emulation() -> None:
    """Raises ORTModuleError unless this build contains the CUDA kernels compiled for the host."""
    if not _C.build_info()["cuda_emulation"]:
        raise _C.ORTModuleError(
            f"[{EMULATION}] the build must hold the CUDA kernels compiled for the host, but found "
            "none; make a developer build (CMAKE_ARGS=-DORTMODULE_TESTS=ON) for a CPU build of torch"
        )
