"""Names of onnxruntime.quantization: integer types, formats, and the reader of calibration data."""

from __future__ import annotations

import abc
from enum import Enum
from typing import Any

from ortmodule_py.inference.notices import did_you_mean


class _Named(Enum):
    def __str__(self) -> str:
        return self.name


class QuantType(_Named):
    """Types of quantized weights and activations."""

    QInt8 = 0
    QUInt8 = 1
    QFLOAT8E4M3FN = 2
    QInt16 = 3
    QUInt16 = 4
    QInt4 = 5
    QUInt4 = 6

    @staticmethod
    def from_string(t: str) -> QuantType:
        """The type of that name. Raises ValueError."""
        return _by_name(QuantType, t)

    @property
    def tensor_type(self) -> int:
        """The number of the type in ONNX (TensorProto.DataType)."""
        return _TENSOR_TYPES[self.name]


_TENSOR_TYPES = {
    "QInt8": 3,
    "QUInt8": 2,
    "QFLOAT8E4M3FN": 17,
    "QInt16": 5,
    "QUInt16": 4,
    "QInt4": 22,
    "QUInt4": 21,
}


class QuantFormat(_Named):
    """How a statically quantized model is written. QDQ is QuantizeLinear and DequantizeLinear."""

    QOperator = 0
    QDQ = 1

    @staticmethod
    def from_string(format: str) -> QuantFormat:  # onnxruntime's name
        """The format of that name. Raises ValueError."""
        return _by_name(QuantFormat, format)


class QuantizationMode(_Named):
    """Integer operators (dynamic) or operators of quantized values (static)."""

    IntegerOps = 0
    QLinearOps = 1

    @staticmethod
    def from_string(mode: str) -> QuantizationMode:
        """The mode of that name. Raises ValueError."""
        return _by_name(QuantizationMode, mode)


class CalibrationMethod(Enum):
    """How the range of an activation is taken from its values."""

    MinMax = 0
    Entropy = 1
    Percentile = 2
    Distribution = 3


class CalibrationDataReader(metaclass=abc.ABCMeta):
    """Gives the feeds that a model is calibrated with, one after the other.

    Subclasses define `get_next`, which returns a dict of arrays by input name, or None at the end.
    """

    @classmethod
    def __subclasshook__(cls, subclass: type) -> bool:
        return callable(getattr(subclass, "get_next", None)) or NotImplemented

    @abc.abstractmethod
    def get_next(self) -> dict[str, Any] | None:
        """The next feed, or None."""

    def __iter__(self) -> CalibrationDataReader:
        return self

    def __next__(self) -> dict[str, Any]:
        feed = self.get_next()
        if feed is None:
            raise StopIteration
        return feed

    def __len__(self) -> int:
        """The number of feeds. Optional."""
        raise NotImplementedError("[quantization] this reader does not define __len__")

    def set_range(self, start_index: int, end_index: int) -> None:
        """Limits the reader to some of its feeds. Optional."""
        raise NotImplementedError("[quantization] this reader does not define set_range")


def _by_name(kind: Any, name: str) -> Any:
    if name not in kind.__members__:
        raise ValueError(
            f"[quantization] {kind.__name__} must be one of {list(kind.__members__)}, "
            f"but found {name!r}"
        )
    return kind[name]


def unknown_option(kind: str, name: str, known: list[str]) -> ValueError:
    """The error of a name in `extra_options`."""
    return ValueError(
        f"[quantization] extra_options of {kind} quantization must be among {known}, but found "
        f"{name!r}{did_you_mean(name, known)}"
    )


def set_option(options: Any, target: str, name: str, value: Any) -> None:
    """Sets the engine's option for one of `extra_options`. Raises ValueError for another type."""
    try:
        setattr(options, target, value)
    except TypeError:
        now = getattr(options, target)
        kind = "a number" if now is None else f"like {now!r}"
        raise ValueError(
            f"[quantization] extra option {name!r} must be {kind}, but found {value!r}"
        ) from None


def name_set(given: Any, what: str) -> set[str]:
    """Names from a list of them, none for None. Raises ValueError for a text, whose letters are none."""
    if isinstance(given, str):
        raise ValueError(f"[quantization] {what} must be a list of names, but found {given!r}")
    return set(given or ())


def integer_type(given: Any, allowed: tuple[QuantType, ...], what: str) -> QuantType:
    """A QuantType from one of ours, onnxruntime's, or a name. Raises ValueError."""
    name = str(given if isinstance(given, str) else getattr(given, "name", None))
    if name not in QuantType.__members__ or QuantType[name] not in allowed:
        names = [each.name for each in allowed]
        raise ValueError(f"[quantization] {what} must be one of {names}, but found {given!r}")
    return QuantType[name]
