"""OrtValue and OrtDevice with onnxruntime's methods: tensors shared with sessions without copies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Any

import numpy as np

from ortmodule_py import _inference
from ortmodule_py.inference import cuda
from ortmodule_py.inference.errors import Fail, InvalidArgument, translated

_CPU = 0
HOST = -1  # in place of the number of a GPU
_DEVICE_TYPES = {"cpu": _CPU, "cuda": 1, "gpu": 1, "webgpu": 1, "dml": 1, "npu": 3, "cann": 3}


class OrtDeviceVendorId(IntEnum):
    """Numbers of vendors, as onnxruntime has them."""

    NONE = 0x0000
    AMD = 0x1002
    NVIDIA = 0x10DE
    ARM = 0x13B5
    MICROSOFT = 0x1414
    HUAWEI = 0x19E5
    QUALCOMM = 0x5143
    INTEL = 0x8086


_VENDORS = {
    "cuda": OrtDeviceVendorId.NVIDIA,
    "dml": OrtDeviceVendorId.MICROSOFT,
    "cann": OrtDeviceVendorId.HUAWEI,
}


class OrtDevice:
    """The device of a tensor: a type, a number, a vendor. "cpu" and "cuda" can be bound."""

    def __init__(self, device_type: int, mem_type: int, vendor_id: int, device_id: int) -> None:
        self._type = device_type
        self._mem_type = mem_type
        self._vendor_id = vendor_id
        self._device_id = device_id

    @staticmethod
    def make(ort_device_name: str, device_id: int, vendor_id: int = -1) -> OrtDevice:
        """The device of that name ("cpu", "cuda", ...). Raises InvalidArgument for other names."""
        name = str(ort_device_name).lower()
        if name not in _DEVICE_TYPES:
            raise InvalidArgument(
                f"[OrtDevice] Unsupported device type: it must be one of {list(_DEVICE_TYPES)}, but "
                f"found '{ort_device_name}'"
            )
        vendor = _VENDORS.get(name, OrtDeviceVendorId.NONE) if vendor_id < 0 else vendor_id
        return OrtDevice(_DEVICE_TYPES[name], 0, int(vendor), int(device_id))

    def device_id(self) -> int:
        """The number of the device among those of its type."""
        return self._device_id

    def device_type(self) -> int:
        """0 for the CPU, 1 for GPUs, 3 for NPUs."""
        return self._type

    def device_vendor_id(self) -> int:
        """The vendor's PCI number, 0 for none."""
        return self._vendor_id

    def device_mem_type(self) -> int:
        """The kind of memory; 0, the default one."""
        return self._mem_type


def device_number(device_type: str, device_id: int = 0, vendor_id: int = -1) -> int:
    """The number of a GPU, or HOST. Raises InvalidArgument, with what to do, for other devices."""
    if OrtDevice.make(device_type, device_id, vendor_id).device_type() == _CPU:
        return HOST
    if str(device_type).lower() not in ("cuda", "gpu") or not cuda.is_available():
        raise InvalidArgument(
            f"[OrtDevice] tensors of sessions must be on device 'cpu', but found '{device_type}': "
            "sessions run on the CPU here. Bind 'cpu' with memory of the CPU (tensor.cpu()), and "
            "move results with torch.from_dlpack(value).to(device)"
        )
    count = cuda.device_count(cuda.emulated())
    if not 0 <= int(device_id) < count:
        raise InvalidArgument(
            f"[OrtDevice] device_id must be below {count}, the number of GPUs, but found {device_id}"
        )
    return int(device_id)


def element_type_number(kind: Any) -> int:
    """ONNX's number of an element type: that number, a numpy type, or a dtype of torch."""
    if isinstance(kind, (int, np.integer)) and not isinstance(kind, bool):
        return int(kind)
    try:
        if type(kind).__module__ == "torch":
            kind = _torch_type(str(kind).rpartition(".")[2])
        number = _inference.element_type(np.dtype(kind))
    except TypeError:
        number = 0
    if not number:
        raise InvalidArgument(
            "[OrtValue] an element type must be a numeric numpy type or a number of "
            f"onnx.TensorProto, but found {kind!r}"
        )
    return number


def _torch_type(name: str) -> Any:
    if hasattr(np, name):
        return name
    import ml_dtypes

    return getattr(ml_dtypes, name, name)


def numpy_type(kind: str) -> Any:
    """The numpy type of an input's type: "tensor(float)", "seq(tensor(int64))"; None of maps."""
    name = "" if "map(" in kind else kind.rpartition("tensor(")[2].rstrip(")")
    if name == "bfloat16":
        import ml_dtypes

        return ml_dtypes.bfloat16
    return {"float": "float32", "double": "float64", "string": "object"}.get(name, name) or None


def value_of(data: Any, kind: str = "") -> _inference.Value:
    """The native value that shares the memory of an array, a tensor or an OrtValue.

    Lists and numbers become arrays for an input of type `kind`.
    """
    if isinstance(data, OrtValue):
        return data._ortvalue
    if isinstance(data, np.ndarray):
        return _inference.Value.from_numpy(data)
    if hasattr(data, "detach"):  # a tensor of torch
        data = data.detach()
        if data.is_conj() or data.is_neg():
            data = data.resolve_conj().resolve_neg()
        return _inference.Value.from_dlpack(data)
    if hasattr(data, "__dlpack__") and not isinstance(data, np.generic):
        return _inference.Value.from_dlpack(data)
    return _inference.Value.from_numpy(np.asarray(data, dtype=numpy_type(kind)))


def _dlpack_device(value: _inference.Value) -> tuple[int, int]:
    return (1, 0) if value.device == HOST else (2, value.device)


# torch.onnx reads results of bfloat16 with torch.from_dlpack(value._get_c_value()).
_inference.Value.__dlpack_device__ = _dlpack_device  # type: ignore[attr-defined]


class OrtValue:
    """A tensor or a sequence of tensors, which sessions read and write in place.

    Made by its class methods or by runs. It keeps the memory that it shares.
    """

    def __init__(self, ortvalue: _inference.Value, numpy_obj: Any = None) -> None:
        if not isinstance(ortvalue, _inference.Value):
            raise ValueError(
                f"[OrtValue] use a class method such as ortvalue_from_numpy(), but found {ortvalue!r}"
            )
        self._ortvalue = ortvalue
        self._numpy_obj = numpy_obj

    def _get_c_value(self) -> _inference.Value:
        return self._ortvalue

    @classmethod
    def ortvalue_from_numpy(
        cls,
        numpy_obj: np.ndarray[Any, Any],
        /,
        device_type: str = "cpu",
        device_id: int = 0,
        vendor_id: int = -1,
    ) -> OrtValue:
        """A value in the array's memory, or a copy on a GPU.

        Arrays with strides are shared as they are.
        """
        device = device_number(device_type, device_id, vendor_id)
        with translated():
            value = value_of(np.asarray(numpy_obj))
            if device == HOST:
                return cls(value, numpy_obj)
            copy = _inference.Value.zeros(value.element_type(), value.shape(), device)
            copy.update_inplace(value)
            return cls(copy)

    @classmethod
    def ortvalue_from_numpy_with_onnx_type(
        cls, data: np.ndarray[Any, Any], /, onnx_element_type: int
    ) -> OrtValue:
        """A value in the array's memory whose elements are read as another type of equal size."""
        with translated():
            return cls(_inference.Value.from_numpy_as(data, int(onnx_element_type)), data)

    @classmethod
    def ortvalue_from_shape_and_type(
        cls,
        shape: Sequence[int],
        element_type: Any,
        device_type: str = "cpu",
        device_id: int = 0,
        vendor_id: int = -1,
        memory_info: Any = None,
    ) -> OrtValue:
        """A value in zeroed memory of its own.

        `element_type` is a numpy type, a dtype of torch, or a number of onnx.TensorProto.
        `memory_info` must be None: there is one kind of memory.
        """
        device = device_number(device_type, device_id, vendor_id)
        if memory_info is not None:
            raise InvalidArgument("[OrtValue] memory_info must be None, but found an object")
        with translated():
            number = element_type_number(element_type)
            return cls(_inference.Value.zeros(number, [int(size) for size in shape], device))

    @classmethod
    def ort_value_from_sparse_tensor(cls, sparse_tensor: Any) -> OrtValue:
        """Refused: sparse tensors cannot be fed. Feed a dense array."""
        raise InvalidArgument(
            "[OrtValue] a value must be a dense tensor, but found a sparse one: sparse tensors are "
            "not supported. Feed sparse_tensor.toarray() or the like"
        )

    def as_sparse_tensor(self) -> Any:
        """Raises: no value is a sparse tensor."""
        raise Fail("[OrtValue] the value must be a sparse tensor, but found " + self.data_type())

    @classmethod
    def from_dlpack(cls, data: Any, /) -> OrtValue:
        """A value in the memory of an object with `__dlpack__`, or of a DLPack capsule.

        Strides are kept. Raises TypeError for other objects, InvalidArgument for tensors that are
        neither on the CPU nor on CUDA or whose element type ONNX lacks.
        """
        with translated():
            return cls(_inference.Value.from_dlpack(data))

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A DLPack capsule in the value's memory, for `torch.from_dlpack(value)` and others."""
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(
                f"[OrtValue] dl_device must be {self.__dlpack_device__()}, but found {dl_device}"
            )
        with translated():
            return self._ortvalue.__dlpack__(max_version=max_version, copy=copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        """(1, 0) for the CPU, (2, number) for a GPU."""
        return _dlpack_device(self._ortvalue)

    def data_ptr(self) -> int:
        """The address of the first element."""
        with translated():
            return self._ortvalue.data_ptr()

    def device_name(self) -> str:
        """ "cpu" or "cuda"."""
        return self._ortvalue.device_name().lower()

    def shape(self) -> list[int]:
        """The sizes of the tensor."""
        with translated():
            return self._ortvalue.shape()

    def data_type(self) -> str:
        """The type as text: "tensor(float)", "seq(tensor(int64))"."""
        return self._ortvalue.data_type()

    def element_type(self) -> int:
        """The number of the element type in onnx.TensorProto."""
        with translated():
            return self._ortvalue.element_type()

    def tensor_size_in_bytes(self) -> int:
        """The bytes of the tensor's elements."""
        with translated():
            return self._ortvalue.tensor_size_in_bytes()

    def has_value(self) -> bool:
        """False for an optional without an element, and for an output before the first run."""
        return self._ortvalue.has_value()

    def is_tensor(self) -> bool:
        """Whether this is one tensor."""
        return self._ortvalue.is_tensor()

    def is_sparse_tensor(self) -> bool:
        """False: there are no sparse tensors."""
        return False

    def is_tensor_sequence(self) -> bool:
        """Whether this is a sequence of tensors."""
        return self._ortvalue.is_tensor_sequence()

    def numpy(self) -> np.ndarray[Any, Any]:
        """An array in the tensor's memory, or a copy of a tensor on a GPU.

        Types that numpy lacks (bfloat16, float8) are those of ml_dtypes. Raises Fail if the value
        is no tensor.
        """
        with translated():
            return self._ortvalue.numpy()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        array = self.numpy()
        if copy is not None:
            return np.array(array, dtype=dtype, copy=copy)
        return array if dtype is None else np.asarray(array, dtype=dtype)

    def update_inplace(self, data: np.ndarray[Any, Any] | OrtValue) -> None:
        """Copies an array or another value of equal type and number of elements into the memory.

        Raises InvalidArgument if they do not fit or the memory is read-only.
        """
        if not isinstance(data, (np.ndarray, OrtValue)):
            raise TypeError(
                f"[OrtValue] data must be a numpy.ndarray or an OrtValue, but found {type(data)}"
            )
        with translated():
            self._ortvalue.update_inplace(value_of(data))


class OrtValueVector(list[_inference.Value]):
    """A list of native values with the methods of onnxruntime's vector."""

    def push_back(self, value: Any) -> None:
        """Appends a native value, an OrtValue, or what `OrtValue.from_dlpack` takes."""
        if isinstance(value, OrtValue):
            value = value._ortvalue
        if not isinstance(value, _inference.Value):
            value = OrtValue.from_dlpack(value)._ortvalue
        self.append(value)

    def push_back_batch(
        self,
        tensors: Iterable[Any],
        data_ptrs: Iterable[int],
        element_types: Iterable[Any],
        shapes: Iterable[Sequence[int]],
        devices: Iterable[OrtDevice],
    ) -> None:
        """Appends tensors of torch by their addresses. The caller keeps them."""
        del tensors
        for address, kind, shape, device in zip(
            data_ptrs, element_types, shapes, devices, strict=True
        ):
            kind_of_device = device.device_type()
            names = [name for name, each in _DEVICE_TYPES.items() if each == kind_of_device]
            number = device_number(names[0] if names else str(kind_of_device), device.device_id())
            self.append(value_at(address, kind, shape, number))

    def reserve(self, size: int) -> None:
        """Does nothing: lists grow by themselves."""

    def shrink_to_fit(self) -> None:
        """Does nothing."""

    def element_type_at(self, index: int) -> int:
        """The number of a tensor's element type in onnx.TensorProto."""
        with translated():
            return self[index].element_type()

    def dlpack_at(self, index: int) -> Any:
        """A DLPack capsule in the memory of that value."""
        with translated():
            return self[index].to_dlpack()

    def to_dlpacks(self, to_tensor: Any = None) -> list[Any]:
        """A DLPack capsule for each value, or what `to_tensor` makes of it."""
        capsules = [self.dlpack_at(i) for i in range(len(self))]
        return capsules if to_tensor is None else [to_tensor(capsule) for capsule in capsules]


def value_at(
    address: int, element_type: Any, shape: Sequence[int], device: int = HOST
) -> _inference.Value:
    """A native value in row-major memory of a device that stays the caller's."""
    with translated():
        return _inference.Value.from_pointer(
            int(address), element_type_number(element_type), [int(size) for size in shape], device
        )


def copy_tensors(src: Sequence[OrtValue], dst: Sequence[OrtValue], stream: Any = None) -> None:
    """Copies each value of `src` into the memory of that of `dst`."""
    if len(src) != len(dst):
        raise InvalidArgument(
            f"[copy_tensors] there must be {len(src)} destinations, but found {len(dst)}"
        )
    for source, target in zip(src, dst, strict=True):
        target.update_inplace(source)
