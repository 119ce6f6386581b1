"""The devices that sessions can run on, as onnxruntime lists them for SessionOptions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ortmodule_py.inference import cuda
from ortmodule_py.inference.enums import OrtDeviceMemoryType, OrtHardwareDeviceType
from ortmodule_py.inference.errors import InvalidArgument
from ortmodule_py.inference.model_facts import OrtMemoryInfo, memory_info
from ortmodule_py.inference.providers import CPU

__all__ = ["OrtEpDevice", "OrtHardwareDevice", "get_ep_devices"]


@dataclass(frozen=True)
class OrtHardwareDevice:
    """A CPU or GPU."""

    type: OrtHardwareDeviceType = OrtHardwareDeviceType.CPU
    vendor: str = ""
    vendor_id: int = 0
    device_id: int = 0
    metadata: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class OrtEpDevice:
    """A device, and the execution provider that runs models on it."""

    ep_name: str = CPU
    ep_vendor: str = "ortmodule_py"
    ep_metadata: dict[str, str] = field(default_factory=dict)
    ep_options: dict[str, str] = field(default_factory=dict)
    device: OrtHardwareDevice = field(default_factory=OrtHardwareDevice)

    def memory_info(self, memory_type: OrtDeviceMemoryType) -> OrtMemoryInfo | None:
        """Memory of the device that is not the host's; None for the CPU."""
        is_host = self.device.type == OrtHardwareDeviceType.CPU
        if is_host or memory_type != OrtDeviceMemoryType.DEFAULT:
            return None
        return memory_info(int(self.ep_options["device_id"]))


def get_ep_devices() -> list[OrtEpDevice]:
    """The CPU, and the GPUs that sessions can run on."""
    devices = [OrtEpDevice()]
    for number in range(cuda.device_count(cuda.emulated())):
        gpu = OrtHardwareDevice(OrtHardwareDeviceType.GPU, "NVIDIA", 0x10DE, number)
        options = {"device_id": str(number)}
        devices.append(OrtEpDevice(cuda.CUDA, ep_options=options, device=gpu))
    return devices


def device_of_runs(number: int) -> OrtEpDevice:
    """The CPU, or the GPU of that number if it is not negative."""
    gpus = [device for device in get_ep_devices() if device.ep_name == cuda.CUDA]
    return gpus[number] if number >= 0 else OrtEpDevice()


def provider_of(
    devices: Sequence[OrtEpDevice], options: Mapping[str, str]
) -> tuple[str, dict[str, str]]:
    """The execution provider of these devices and its options. All must be of one provider."""
    if not devices or not all(isinstance(device, OrtEpDevice) for device in devices):
        raise InvalidArgument(
            f"[SessionOptions] devices must be some of get_ep_devices(), but found {devices!r}"
        )
    if len({(device.ep_name, device.device.device_id) for device in devices}) > 1:
        raise InvalidArgument(
            "[SessionOptions] a session runs on one device, but found "
            f"{[device.ep_name for device in devices]}"
        )
    return devices[0].ep_name, {**devices[0].ep_options, **options}
