"""Ranges of values, as calibration finds them, and the caches that they are kept in."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ortmodule_py.inference.replaced_file import replaced_file
from ortmodule_py.quantization.kinds import CalibrationMethod

_ARRAYS = ("lowest", "highest", "avg", "std", "hist_edges")
_FACTS = (*_ARRAYS, "hist", "bins")


class TensorData:
    """What is known of a value: `lowest` and `highest`, and of a histogram `hist` and `hist_edges`."""

    lowest: Any
    highest: Any

    def __init__(self, **facts: Any) -> None:
        unknown = [name for name in facts if name not in _FACTS]
        if unknown:
            raise ValueError(f"[quantization] facts must be among {_FACTS}, but found {unknown}")
        self._names = list(facts)
        for name, value in facts.items():
            setattr(self, name, np.asarray(value, np.float32) if name in _ARRAYS else value)

    @property
    def range_value(self) -> tuple[Any, Any]:
        """(lowest, highest)"""
        return self.lowest, self.highest

    @property
    def avg_std(self) -> tuple[Any, Any]:
        """(mean, standard deviation)"""
        return self.avg, self.std  # type: ignore[attr-defined]

    def to_dict(self) -> dict[str, Any]:
        """As onnxruntime writes it into a calibration cache."""
        facts = {name: _array_dict(getattr(self, name)) for name in self._names}
        return facts | {"CLS": "TensorData"}

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> TensorData:
        """The reverse of to_dict()."""
        return cls(**{name: _array(each) for name, each in facts.items() if name != "CLS"})


class TensorsData(Mapping[str, TensorData]):
    """Ranges by the names of values, with the method that found them.

    `data` has a TensorData, a pair of ends, or these with a histogram and its edges, by name.
    """

    def __init__(self, calibration_method: CalibrationMethod, data: Mapping[str, Any]) -> None:
        self.calibration_method = calibration_method
        self.data = {name: _tensor_data(name, each) for name, each in data.items()}

    def __iter__(self) -> Iterator[str]:
        return iter(self.data)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, name: str) -> TensorData:
        return self.data[name]

    def __setitem__(self, name: str, value: TensorData) -> None:
        if name not in self.data:
            raise RuntimeError(f"[quantization] '{name}' must be one of the values that are there")
        self.data[name] = value


def _tensor_data(name: str, given: Any) -> TensorData:
    if isinstance(given, TensorData):
        return given
    if isinstance(given, (tuple, list)) and len(given) in (2, 4):
        return TensorData(
            **dict(zip(("lowest", "highest", "hist", "hist_edges"), given, strict=False))
        )
    raise TypeError(
        f"[quantization] the range of '{name}' must be a TensorData or a pair, but found {given!r}"
    )


def load_tensors_data(path: Any) -> TensorsData:
    """The ranges of a calibration cache, onnxruntime's or ours. Raises ValueError."""
    if Path(path).exists() and not Path(path).is_file():
        raise ValueError(f"[quantization] {path}: must be a calibration cache, but is no file")
    try:
        content = json.loads(Path(path).read_text())
    except ValueError as error:
        raise ValueError(
            f"[quantization] {path}: must be a calibration cache in JSON, but found: {error}"
        ) from None
    try:
        method = content["calibration_method"]["value"].rpartition(".")[2]
        data = {name: TensorData.from_dict(each) for name, each in content["data"].items()}
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(
            f"[quantization] {path}: must be a calibration cache with ranges, but found no {error}"
        ) from None
    return TensorsData(CalibrationMethod[method], data)


def save_tensors_data(tensors_data: TensorsData, path: Any, *, smooth_quant: bool = False) -> None:
    """Writes a calibration cache in onnxruntime's form, also its folder; replaces the file at once."""
    content = {
        "CLS": "TensorsData",
        "data": {name: each.to_dict() for name, each in tensors_data.items()},
        "calibration_method": {
            "CLS": "CalibrationMethod",
            "value": f"CalibrationMethod.{tensors_data.calibration_method.name}",
        },
        "smooth_quant": smooth_quant,
    }
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with replaced_file(path) as part:
        part.write_text(json.dumps(content))


def _array_dict(value: Any) -> Any:
    if not isinstance(value, (np.ndarray, np.generic)):
        return value
    return {"data": value.tolist(), "dtype": str(value.dtype), "CLS": "numpy.array"}


def _array(value: Any) -> Any:
    return np.array(value["data"], value["dtype"]) if isinstance(value, dict) else value
