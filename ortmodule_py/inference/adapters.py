"""Adapters (LoRA): parameters in a file of their own, which runs feed to a model beside its inputs.

The file is onnxruntime's, a FlatBuffer: a table begins with the distance back to its list of fields,
and what a field refers to lies behind the field, whose number is the distance.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ortmodule_py.inference.errors import InvalidArgument, NoSuchFile, translated
from ortmodule_py.inference.ort_value import OrtValue
from ortmodule_py.inference.replaced_file import replaced_file

if TYPE_CHECKING:
    from ortmodule_py.inference.options import RunOptions

_IDENTIFIER = b"TORT"
_FORMAT_VERSION = 1
_FIELDS = 4  # of each of the two tables
_ALIGNMENT = 8
# Bytes of an element by the number of its type in onnx.TensorProto.
_BYTES = {
    **dict.fromkeys((2, 3, 9, 17, 18, 19, 20), 1),
    **dict.fromkeys((4, 5, 10, 16), 2),
    **dict.fromkeys((1, 6, 12), 4),
    **dict.fromkeys((7, 11, 13, 14), 8),
    15: 16,
}


class AdapterFormat:
    """The content of an adapter's file: parameters, and versions that are the user's to choose."""

    def __init__(self) -> None:
        self._format_version = _FORMAT_VERSION
        self._adapter_version = 0
        self._model_version = 0
        self._parameters: dict[str, OrtValue] = {}

    @staticmethod
    def read_adapter(file_path: str | os.PathLike[str]) -> AdapterFormat:
        """Reads a file; the parameters stay in it. Raises NoSuchFile or InvalidArgument."""
        if not os.path.isfile(file_path):
            raise NoSuchFile(f"[adapter] an adapter must be a file, but found {str(file_path)!r}")
        try:
            return _read(np.memmap(file_path, np.uint8, "r"))
        except (ValueError, struct.error) as error:
            raise InvalidArgument(
                f"[adapter] {file_path}: must be a file of onnxruntime's adapters, but found: {error}"
            ) from None

    def export_adapter(self, file_path: str | os.PathLike[str]) -> None:
        """Writes a file that onnxruntime reads, too; replaces an existing one at once."""
        content = _written(self)
        with replaced_file(file_path) as part:
            part.write_bytes(content)

    def get_format_version(self) -> int:
        """The version of the file's form."""
        return self._format_version

    def get_adapter_version(self) -> int:
        """The version of the adapter."""
        return self._adapter_version

    def set_adapter_version(self, adapter_version: int) -> None:
        """Sets the version of the adapter."""
        self._adapter_version = int(adapter_version)

    def get_model_version(self) -> int:
        """The version of the model that it is for."""
        return self._model_version

    def set_model_version(self, model_version: int) -> None:
        """Sets the version of the model that it is for."""
        self._model_version = int(model_version)

    def get_parameters(self) -> dict[str, OrtValue]:
        """The parameters by the name of the model's input."""
        return dict(self._parameters)

    def set_parameters(self, params: Mapping[str, OrtValue]) -> None:
        """Sets the parameters. Raises InvalidArgument for values that are no tensors of numbers."""
        for name, value in params.items():
            if not isinstance(value, OrtValue) or value.element_type() not in _BYTES:
                raise InvalidArgument(
                    f"[adapter] parameter '{name}' must be a tensor of numbers, but found {value!r}"
                )
        self._parameters = dict(params)


class LoraAdapter:
    """An adapter that runs can use, see RunOptions.add_active_adapter()."""

    def __init__(self) -> None:
        self._parameters: dict[str, OrtValue] = {}

    def Load(self, file_path: str) -> None:
        """Maps the file of an adapter. Raises NoSuchFile or InvalidArgument."""
        self._parameters = AdapterFormat.read_adapter(file_path).get_parameters()


def with_adapters(feed: Mapping[str, Any], options: RunOptions | None) -> Mapping[str, Any]:
    """A feed with the parameters of the run's adapters; what is fed wins."""
    if options is None or not options._adapters:
        return feed
    merged: dict[str, Any] = {}
    for adapter in options._adapters:
        merged |= adapter._parameters
    return merged | dict(feed)


# ---- reading: every number is checked against the bytes that are there ---------------------------


class _Table:
    """The fields of a table at a place of the file."""

    def __init__(self, data: Any, place: int) -> None:
        self._data, self._place = data, place
        self._fields = place - _number(data, place, "<i")
        self._size = _number(data, self._fields, "<H")

    def _at(self, field: int) -> int:
        """Where the field is; 0 if the table lacks it."""
        at = 4 + 2 * field
        offset = _number(self._data, self._fields + at, "<H") if at + 2 <= self._size else 0
        return self._place + offset if offset else 0

    def integer(self, field: int) -> int:
        at = self._at(field)
        return _number(self._data, at, "<i") if at else 0

    def vector(self, field: int, item_bytes: int) -> tuple[int, int]:
        """Where the elements of a vector begin, and how many there are."""
        at = self._at(field)
        if not at:
            return 0, 0
        at += _number(self._data, at, "<I")
        count = _number(self._data, at, "<I")
        if at + 4 + count * item_bytes > len(self._data):
            raise ValueError(f"a list of {count} elements, which the file is too short for")
        return at + 4, count


def _number(data: Any, place: int, kind: str) -> int:
    if place < 0:
        raise ValueError("a place before the file")
    return int(struct.unpack_from(kind, data, place)[0])


def _read(data: Any) -> AdapterFormat:
    if bytes(data[4:8]) != _IDENTIFIER:
        raise ValueError(f"no {_IDENTIFIER.decode()} at byte 4")
    root = _Table(data, _number(data, 0, "<I"))
    adapter = AdapterFormat()
    adapter._format_version = root.integer(0)
    adapter._adapter_version, adapter._model_version = root.integer(1), root.integer(2)
    first, count = root.vector(3, 4)
    for place in range(first, first + 4 * count, 4):
        name, value = _parameter(data, _Table(data, place + _number(data, place, "<I")))
        adapter._parameters[name] = value
    return adapter


def _parameter(data: Any, table: _Table) -> tuple[str, OrtValue]:
    start, length = table.vector(0, 1)
    name = bytes(data[start : start + length]).decode()
    start, rank = table.vector(1, 8)
    sizes = [int(size) for size in struct.unpack_from(f"<{rank}q", data, start)]
    number = table.integer(2)
    if number not in _BYTES:
        raise ValueError(f"parameter '{name}' of element type {number}")
    start, length = table.vector(3, 1)
    if min(sizes, default=0) < 0 or int(np.prod(sizes, dtype=object)) * _BYTES[number] != length:
        raise ValueError(f"parameter '{name}' of sizes {sizes} with {length} bytes")
    width = _BYTES[number]
    kind = np.complex128 if width == 16 else np.dtype(f"uint{8 * width}")
    elements = data[start : start + length].view(kind).reshape(sizes)
    with translated():
        return name, OrtValue.ortvalue_from_numpy_with_onnx_type(elements, number)


# ---- writing -------------------------------------------------------------------------------------


class _Writer:
    """Bytes from front to back; distances to what follows are filled in when it is written."""

    def __init__(self) -> None:
        self.data = bytearray()

    def add(self, kind: str, *numbers: Any) -> int:
        place = len(self.data)
        self.data += struct.pack(f"<{kind}", *numbers)
        return place

    def align(self, bytes_: int, ahead: int = 0) -> None:
        """So that what is written `ahead` bytes later is aligned."""
        self.data += bytes(-(len(self.data) + ahead) % bytes_)

    def refer(self, place: int) -> None:
        """The distance at `place` is that to here."""
        struct.pack_into("<I", self.data, place, len(self.data) - place)

    def fields(self) -> int:
        """The list of fields of a table in which all four are there, with four bytes each."""
        size = 4 * (1 + _FIELDS)
        return self.add("6H", 2 * (2 + _FIELDS), size, *range(4, size, 4))


def _written(adapter: AdapterFormat) -> bytes:
    out = _Writer()
    root = out.add("I4s", 0, _IDENTIFIER)
    fields = out.fields()
    out.refer(root)
    versions = adapter._format_version, adapter._adapter_version, adapter._model_version
    table = out.add("iiiiI", len(out.data) - fields, *versions, 0)
    out.refer(table + 16)
    parameters = adapter._parameters
    out.add("I", len(parameters))
    places = [out.add("I", 0) for _ in parameters]
    fields = out.fields()
    for place, (name, value) in zip(places, parameters.items(), strict=True):
        out.align(4)
        out.refer(place)
        table = out.add("iIIiI", len(out.data) - fields, 0, 0, value.element_type(), 0)
        text = name.encode()
        out.refer(table + 4)
        out.add("I", len(text))
        out.data += text + b"\0"
        out.align(_ALIGNMENT, 4)
        out.refer(table + 8)
        sizes = value.shape()
        out.add(f"I{len(sizes)}q", len(sizes), *sizes)
        elements = np.ascontiguousarray(value.numpy()).tobytes()
        out.align(_ALIGNMENT, 4)
        out.refer(table + 16)
        out.add("I", len(elements))
        out.data += elements
    return bytes(out.data)
