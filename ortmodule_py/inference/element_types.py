"""Element types by the text of an input's type, as programs look them up that bind tensors of torch."""

from __future__ import annotations

from typing import Any

import numpy as np

from ortmodule_py.inference.session import InferenceSession

# By the text: the name in torch, where it is not that of numpy, and the number in onnx.TensorProto.
_TYPES = {
    "tensor(float)": ("float32", 1),
    "tensor(uint8)": ("uint8", 2),
    "tensor(int8)": ("int8", 3),
    "tensor(uint16)": ("uint16", 4),
    "tensor(int16)": ("int16", 5),
    "tensor(int32)": ("int32", 6),
    "tensor(int64)": ("int64", 7),
    "tensor(string)": ("", 8),
    "tensor(bool)": ("bool", 9),
    "tensor(float16)": ("float16", 10),
    "tensor(double)": ("float64", 11),
    "tensor(uint32)": ("uint32", 12),
    "tensor(uint64)": ("uint64", 13),
    "tensor(complex64)": ("complex64", 14),
    "tensor(complex128)": ("complex128", 15),
    "tensor(bfloat16)": ("bfloat16", 16),
    "tensor(float8e4m3fn)": ("float8_e4m3fn", 17),
    "tensor(float8e4m3fnuz)": ("float8_e4m3fnuz", 18),
    "tensor(float8e5m2)": ("float8_e5m2", 19),
    "tensor(float8e5m2fnuz)": ("float8_e5m2fnuz", 20),
    "tensor(uint4)": ("uint4", 21),
    "tensor(int4)": ("int4", 22),
    "tensor(float4e2m1)": ("", 23),
}


class TypeHelper:
    """onnxruntime's look-ups. Each raises ValueError for a name or a type that it does not know."""

    @staticmethod
    def get_input_type(ort_session: InferenceSession, name: str) -> str:
        """The type of that input, as text."""
        return _type_of(ort_session.get_inputs(), name, "input")

    @staticmethod
    def get_output_type(ort_session: InferenceSession, name: str) -> str:
        """The type of that output, as text."""
        return _type_of(ort_session.get_outputs(), name, "output")

    @staticmethod
    def ort_type_to_numpy_type(ort_type: str) -> Any:
        """The numpy type; bool for tensor(bool)."""
        name, _ = _facts(ort_type)
        if name == "bool":
            return bool
        return _found(getattr(np, name, None) if name else None, ort_type)

    @staticmethod
    def ort_type_to_torch_type(ort_type: str) -> Any:
        """The dtype of torch."""
        import torch

        name, _ = _facts(ort_type)
        return _found(getattr(torch, name, None) if name else None, ort_type)

    @staticmethod
    def ort_type_to_onnx_type(ort_type: str) -> int:
        """The number in onnx.TensorProto."""
        return _facts(ort_type)[1]

    @staticmethod
    def get_io_onnx_type_map(ort_session: InferenceSession) -> dict[str, int]:
        """The numbers of the types of all inputs and outputs, by name."""
        values = ort_session.get_inputs() + ort_session.get_outputs()
        return {value.name: TypeHelper.ort_type_to_onnx_type(value.type) for value in values}

    @staticmethod
    def get_io_numpy_type_map(ort_session: InferenceSession) -> dict[str, Any]:
        """The numpy types of all inputs and outputs, by name."""
        values = ort_session.get_inputs() + ort_session.get_outputs()
        return {value.name: TypeHelper.ort_type_to_numpy_type(value.type) for value in values}

    @staticmethod
    def get_io_torch_type_map(ort_session: InferenceSession) -> dict[str, Any]:
        """The dtypes of torch of all inputs and outputs, by name."""
        values = ort_session.get_inputs() + ort_session.get_outputs()
        return {value.name: TypeHelper.ort_type_to_torch_type(value.type) for value in values}

    @staticmethod
    def numpy_type_to_torch_type(numpy_type: Any) -> Any:
        """The dtype of torch for a numpy type."""
        import torch

        try:
            name = np.dtype(numpy_type).name
        except TypeError:
            name = ""
        return _found(getattr(torch, name, None) if name else None, numpy_type)

    @staticmethod
    def torch_type_to_numpy_type(torch_type: Any) -> Any:
        """The numpy type for a dtype of torch; bool for torch.bool."""
        name = str(torch_type).rpartition(".")[2]
        return bool if name == "bool" else _found(getattr(np, name, None), torch_type)


def _type_of(values: list[Any], name: str, what: str) -> str:
    for value in values:
        if value.name == name:
            return str(value.type)
    raise ValueError(f"{what} name {name} not found")


def _facts(ort_type: str) -> tuple[str, int]:
    if ort_type not in _TYPES:
        raise ValueError(f"{ort_type} not found in map")
    return _TYPES[ort_type]


def _found(kind: Any, wanted: Any) -> Any:
    if kind is None:
        raise ValueError(f"{wanted} not found in map")
    return kind
