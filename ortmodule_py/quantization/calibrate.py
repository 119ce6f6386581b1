"""Ranges of the values of a model, measured with its own session."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ortmodule_py.quantization.kinds import CalibrationMethod
from ortmodule_py.quantization.model_files import feeds_of, ranges, read_model

_VALUES_AT_ONCE = 256  # whose ranges one session computes


class TensorData:
    """The range of a value: `lowest` and `highest`, arrays of one float."""

    def __init__(self, *, lowest: Any, highest: Any) -> None:
        self.lowest = np.asarray(lowest, dtype=np.float32)
        self.highest = np.asarray(highest, dtype=np.float32)

    @property
    def range_value(self) -> tuple[Any, Any]:
        """(lowest, highest)"""
        return self.lowest, self.highest

    def to_dict(self) -> dict[str, Any]:
        """As onnxruntime writes it into a calibration cache."""
        return {
            "lowest": _array_dict(self.lowest),
            "highest": _array_dict(self.highest),
            "CLS": "TensorData",
        }


class TensorsData(Mapping[str, TensorData]):
    """Ranges by the names of values, with the method that found them."""

    def __init__(self, calibration_method: CalibrationMethod, data: Mapping[str, Any]) -> None:
        self.calibration_method = calibration_method
        self.data = {
            name: each
            if isinstance(each, TensorData)
            else TensorData(lowest=each[0], highest=each[1])
            for name, each in data.items()
        }

    def __iter__(self) -> Iterator[str]:
        return iter(self.data)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, name: str) -> TensorData:
        return self.data[name]


class MinMaxCalibrater:
    """The least and largest element of each value over all feeds.

    Args:
        model: path, bytes or ModelProto of the float model.
        names: the values.
        symmetric: ranges become [-a, a].
        moving_average: the mean of the feeds' ranges instead of their extremes.
    """

    def __init__(
        self, model: Any, names: list[str], symmetric: bool = False, moving_average: bool = False
    ) -> None:
        self._model = model
        self._names = names
        self._symmetric = symmetric
        self._moving_average = moving_average
        self._ends: dict[str, list[tuple[float, float]]] = {name: [] for name in names}

    def collect_data(self, data_reader: Any) -> None:
        """Runs all feeds of a CalibrationDataReader. Raises ValueError if there are none."""
        feeds = feeds_of(data_reader)
        if not feeds:
            raise ValueError("[quantization] calibration needs feeds, but the reader gave none")
        for at in range(0, len(self._names), _VALUES_AT_ONCE):
            self._collect(self._names[at : at + _VALUES_AT_ONCE], feeds)

    def _collect(self, names: list[str], feeds: list[Mapping[str, Any]]) -> None:
        model = read_model(self._model)
        produced = {name for _, _, _, _, outputs in model.nodes() for name in outputs}
        inner = [name for name in names if name in produced]
        for feed, computed in zip(feeds, ranges(model, inner, feeds), strict=True):
            for name in names:
                if name in feed:
                    ends = float(np.min(feed[name])), float(np.max(feed[name]))
                    self._ends[name].append(ends)
            for name, ends in computed.items():
                self._ends[name].append(ends)

    def compute_data(self) -> TensorsData:
        """The ranges over all feeds so far."""
        found = {}
        for name, ends in self._ends.items():
            if not ends:
                continue
            least, most = np.transpose(ends)
            mean = self._moving_average
            low = np.nanmean(least) if mean else np.nanmin(least)
            high = np.nanmean(most) if mean else np.nanmax(most)
            if self._symmetric:
                high = max(abs(low), abs(high))
                low = -high
            found[name] = (np.float32(low), np.float32(high))
        return TensorsData(CalibrationMethod.MinMax, found)


def create_calibrator(
    model: Any,
    names: list[str],
    calibrate_method: CalibrationMethod = CalibrationMethod.MinMax,
    extra_options: Mapping[str, Any] | None = None,
) -> MinMaxCalibrater:
    """A calibrator of the values `names`. Raises ValueError for methods other than MinMax."""
    if getattr(calibrate_method, "name", calibrate_method) != "MinMax":
        raise ValueError(
            "[quantization] calibrate_method must be CalibrationMethod.MinMax, "
            f"but found {calibrate_method}"
        )
    return MinMaxCalibrater(model, names, **(extra_options or {}))


# ---- calibration caches ------------------------------------------------------------------------


def load_ranges(path: Any) -> TensorsData:
    """The ranges of a calibration cache, onnxruntime's or ours. Raises ValueError."""
    content = json.loads(Path(path).read_text())
    try:
        method = content["calibration_method"]["value"].rpartition(".")[2]
        data = {
            name: (_array(each["lowest"]), _array(each["highest"]))
            for name, each in content["data"].items()
        }
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"[quantization] {path}: must be a calibration cache with ranges, but found no {error}"
        ) from None
    return TensorsData(CalibrationMethod[method], data)


def save_ranges(data: TensorsData, path: Any) -> None:
    """Writes a calibration cache in onnxruntime's form; replaces the file at once."""
    content = {
        "CLS": "TensorsData",
        "data": {name: each.to_dict() for name, each in data.items()},
        "calibration_method": {
            "CLS": "CalibrationMethod",
            "value": f"CalibrationMethod.{data.calibration_method.name}",
        },
        "smooth_quant": False,
    }
    temporary = f"{os.fspath(path)}.tmp"
    Path(temporary).write_text(json.dumps(content))
    os.replace(temporary, path)


def _array_dict(array: np.ndarray[Any, Any]) -> dict[str, Any]:
    return {"data": array.tolist(), "dtype": str(array.dtype), "CLS": "numpy.array"}


def _array(value: Any) -> Any:
    return np.asarray(value["data"] if isinstance(value, dict) else value, dtype=np.float32).max()
