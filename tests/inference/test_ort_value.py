"""OrtValue beside onnxruntime's: memory is shared, in both directions, and never outlived."""

from __future__ import annotations

import gc
import inspect
import weakref
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from onnx import TensorProto

import ortmodule_py.inference as ours
from ortmodule_py.inference import Fail, InvalidArgument, OrtValue, copy_tensors

Array = np.ndarray[Any, Any]


def test_the_same_methods_and_parameters_as_onnxruntime() -> None:
    for name in ("IOBinding", "OrtValue", "OrtDevice"):
        stock = getattr(onnxruntime, name)
        for method in (m for m in dir(stock) if not m.startswith("_") or "dlpack" in m):
            mine = getattr(getattr(ours, name), method, None)
            assert mine is not None, f"{name}.{method}"
            wanted = set(inspect.signature(getattr(stock, method)).parameters)
            assert wanted <= set(inspect.signature(mine).parameters), f"{name}.{method}"
    for method in ("run_with_ort_values", "run_with_iobinding", "run_with_ortvaluevector"):
        stock_method = getattr(onnxruntime.InferenceSession, method)
        assert list(inspect.signature(stock_method).parameters) == list(
            inspect.signature(getattr(ours.InferenceSession, method)).parameters
        )


NUMERIC = (
    *("float16", "float32", "float64", "bool", "complex64"),
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
)
PROPERTIES = (
    *("shape", "data_type", "element_type", "tensor_size_in_bytes", "device_name", "has_value"),
    *("is_tensor", "is_sparse_tensor", "is_tensor_sequence", "data_ptr", "__dlpack_device__"),
)


@pytest.mark.parametrize("name", NUMERIC)
def test_values_of_arrays_beside_onnxruntime(name: str) -> None:
    array: Array = np.arange(6).reshape(2, 3).astype(name)
    value = OrtValue.ortvalue_from_numpy(array)
    if name != "complex64":
        stock = onnxruntime.OrtValue.ortvalue_from_numpy(array)
        for method in PROPERTIES:
            assert getattr(value, method)() == getattr(stock, method)(), method
    assert value.data_ptr() == array.ctypes.data
    shared = value.numpy()
    assert shared.dtype == array.dtype and shared.ctypes.data == array.ctypes.data
    np.testing.assert_array_equal(np.asarray(value), array)
    made = OrtValue.ortvalue_from_shape_and_type([2, 3], array.dtype)
    assert made.data_type() == value.data_type() and not made.numpy().any()
    made.update_inplace(array)
    np.testing.assert_array_equal(made.numpy(), array)
    np.testing.assert_array_equal(np.from_dlpack(value), array)
    again = OrtValue.from_dlpack(value)
    assert again.data_type() == value.data_type() and again.data_ptr() == value.data_ptr()


def test_values_of_types_that_numpy_lacks() -> None:
    value = OrtValue.ortvalue_from_shape_and_type((2, 3), TensorProto.BFLOAT16)
    assert (value.data_type(), value.tensor_size_in_bytes()) == ("tensor(bfloat16)", 12)
    assert value.numpy().dtype.name == "bfloat16"
    bits = np.array([0x3F80, 0x4000], "uint16")
    value = OrtValue.ortvalue_from_numpy_with_onnx_type(bits, TensorProto.BFLOAT16)
    assert torch.from_dlpack(value).tolist() == [1.0, 2.0]
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz):
        tensor = torch.tensor([1.0, -2.0]).to(dtype)
        value = OrtValue.from_dlpack(tensor)
        assert value.data_ptr() == tensor.data_ptr()
        assert value.numpy().astype("float32").tolist() == [1.0, -2.0]
        assert torch.from_dlpack(value).dtype == dtype
    with pytest.raises(InvalidArgument, match="elements of the array must have the size"):
        OrtValue.ortvalue_from_numpy_with_onnx_type(np.zeros(2, "uint32"), TensorProto.BFLOAT16)
    value = OrtValue.ortvalue_from_shape_and_type((3,), TensorProto.INT4)
    assert (value.tensor_size_in_bytes(), value.numpy().dtype.name) == (3, "int4")


def test_what_is_no_value_is_refused() -> None:
    for kind in (999, TensorProto.STRING, 0, -1):
        with pytest.raises(InvalidArgument, match=r"\[OrtValue\]"):
            OrtValue.ortvalue_from_shape_and_type((2,), kind)
    for wrong in (str, object, "no type", "M8[s]"):
        with pytest.raises(InvalidArgument, match="a numeric numpy type"):
            OrtValue.ortvalue_from_shape_and_type((2,), wrong)
    for shape in ((2, -3), (1 << 40, 1 << 40)):
        with pytest.raises(InvalidArgument, match=r"\[OrtValue\]"):
            OrtValue.ortvalue_from_shape_and_type(shape, np.float32)
    with pytest.raises(InvalidArgument, match="a numeric type of ONNX, but found <U1"):
        OrtValue.ortvalue_from_numpy(np.array(["a"]))
    with pytest.raises(InvalidArgument, match="sparse tensors are not supported"):
        OrtValue.ort_value_from_sparse_tensor(None)
    with pytest.raises(Fail, match="sparse"):
        OrtValue.ortvalue_from_numpy(np.zeros(1)).as_sparse_tensor()
    with pytest.raises(TypeError, match="must have __dlpack__"):
        OrtValue.from_dlpack(3)
    with pytest.raises(ValueError, match="use a class method"):
        OrtValue(np.zeros(1))  # type: ignore[arg-type]


def test_update_in_place_checks_type_and_number() -> None:
    array: Array = np.zeros((2, 3), "float32")
    value = OrtValue.ortvalue_from_numpy(array)
    value.update_inplace(np.arange(6, dtype="float32").reshape(3, 2))  # as in onnxruntime
    np.testing.assert_array_equal(array.ravel(), np.arange(6))
    value.update_inplace(array[::-1])
    np.testing.assert_array_equal(array, [[3, 4, 5], [0, 1, 2]])
    wrong: Array
    for wrong, message in (
        (np.zeros((2, 3), np.float64), "must have type float, but found double"),
        (np.zeros((2, 2), np.float32), "must have 6 elements, but found 4"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            value.update_inplace(wrong)
    with pytest.raises(TypeError, match=r"numpy\.ndarray or an OrtValue"):
        value.update_inplace([1.0])  # type: ignore[arg-type]
    other = OrtValue.ortvalue_from_shape_and_type((2, 3), np.float32)
    copy_tensors([value], [other])
    np.testing.assert_array_equal(other.numpy(), array)
    with pytest.raises(InvalidArgument, match="1 destinations"):
        copy_tensors([value], [])
    array.flags.writeable = False
    with pytest.raises(InvalidArgument, match="must be writable"):
        OrtValue.ortvalue_from_numpy(array).update_inplace(np.ones((2, 3), "float32"))


def test_dlpack_shares_memory_in_both_directions() -> None:
    tensor = torch.arange(24.0).reshape(2, 3, 4).permute(2, 0, 1)
    value = OrtValue.from_dlpack(tensor)
    assert value.shape() == [4, 2, 3] and value.data_ptr() == tensor.data_ptr()
    np.testing.assert_array_equal(value.numpy(), tensor.numpy())
    back = torch.from_dlpack(value)
    assert back.data_ptr() == tensor.data_ptr() and back.stride() == tensor.stride()
    back[0, 0, 0] = -5
    assert tensor[0, 0, 0] == -5
    capsule = value._ortvalue.to_dlpack()
    assert OrtValue.from_dlpack(capsule).shape() == [4, 2, 3]
    with pytest.raises(TypeError, match="an unused capsule"):
        OrtValue.from_dlpack(capsule)
    copy = np.from_dlpack(value, copy=True)
    assert copy.ctypes.data != tensor.data_ptr()
    reversed_rows = np.arange(6.0)[::-2]
    np.testing.assert_array_equal(OrtValue.from_dlpack(reversed_rows).numpy(), reversed_rows)
    with pytest.raises(BufferError):
        OrtValue.from_dlpack(torch.zeros(2, requires_grad=True))
    with pytest.raises(InvalidArgument, match="one of ONNX's whole bytes"):
        OrtValue.from_dlpack(torch.zeros(2, dtype=torch.float4_e2m1fn_x2))
    with pytest.raises(
        InvalidArgument, match=r"in memory of the CPU or of CUDA, but found device type 8"
    ):
        OrtValue.from_dlpack(_OnAnotherDevice())


class _OnAnotherDevice:
    def __dlpack_device__(self) -> tuple[int, int]:
        return (8, 0)

    def __dlpack__(self, **options: Any) -> Any:
        raise AssertionError("a tensor of another device must not be asked for its memory")


def test_read_only_memory_stays_read_only() -> None:
    array: Array = np.arange(3.0)
    array.flags.writeable = False
    for value in (OrtValue.ortvalue_from_numpy(array), OrtValue.from_dlpack(array)):
        assert value.data_ptr() == array.ctypes.data
        assert not value.numpy().flags.writeable
        assert not np.from_dlpack(value).flags.writeable
        with pytest.raises(BufferError, match="read-only"):
            value.__dlpack__()


def test_memory_lives_as_long_as_anyone_uses_it() -> None:
    array: Array = np.arange(4.0)
    kept = weakref.ref(array)
    value = OrtValue.ortvalue_from_numpy(array)
    tensor = torch.from_dlpack(value)
    unused = value._ortvalue.to_dlpack()
    view = value.numpy()[1:]
    del array, value, unused
    gc.collect()
    assert kept() is not None and tensor.tolist() == [0, 1, 2, 3]
    del tensor
    gc.collect()
    assert kept() is not None and view.tolist() == [1, 2, 3]
    del view
    gc.collect()
    assert kept() is None


def test_native_values_are_read_by_torch() -> None:
    """As torch.onnx reads results of types that numpy lacks."""
    for package in (onnxruntime, ours):
        value = package.OrtValue.ortvalue_from_numpy_with_onnx_type(
            np.array([0x3F80, 0x4000], "uint16"), TensorProto.BFLOAT16
        )
        assert value._get_c_value().__dlpack_device__() == (1, 0)
        assert torch.from_dlpack(value._get_c_value()).tolist() == [1.0, 2.0]
        assert torch.from_dlpack(value._ortvalue).dtype == torch.bfloat16
