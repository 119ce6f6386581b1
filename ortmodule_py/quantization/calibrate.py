"""Ranges of the values of a model, measured with its own session."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ortmodule_py import _inference
from ortmodule_py.inference import InferenceSession
from ortmodule_py.inference.errors import translated
from ortmodule_py.quantization.kinds import CalibrationMethod
from ortmodule_py.quantization.model_files import read_model, write_model

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


class TensorsData:
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

    def __contains__(self, name: object) -> bool:
        return name in self.data

    def __getitem__(self, name: str) -> TensorData:
        return self.data[name]

    def items(self) -> Any:
        """(name, range) of each value."""
        return self.data.items()


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
        self._least: dict[str, list[float]] = {name: [] for name in names}
        self._most: dict[str, list[float]] = {name: [] for name in names}

    def collect_data(self, data_reader: Any) -> None:
        """Runs all feeds of a CalibrationDataReader. Raises ValueError if there are none."""
        get_next = getattr(data_reader, "get_next", None)
        feeds = list(iter(get_next, None)) if get_next else list(data_reader)
        if not feeds:
            raise ValueError("[quantization] calibration needs feeds, but the reader gave none")
        for at in range(0, len(self._names), _VALUES_AT_ONCE):
            self._collect(self._names[at : at + _VALUES_AT_ONCE], feeds)

    def _collect(self, names: list[str], feeds: list[Mapping[str, Any]]) -> None:
        model = read_model(self._model)
        produced = {name for _, _, _, _, outputs in model.nodes() for name in outputs}
        inner = [name for name in names if name in produced]
        with tempfile.TemporaryDirectory() as folder:
            before = len(_output_names(model, folder))
            with translated():
                model.add_ranges(inner)
            path = Path(folder) / "ranges.onnx"
            write_model(model, path)
            session = InferenceSession(path)
            outputs = [each.name for each in session.get_outputs()][before:]
            for feed in feeds:
                for name in names:
                    if name in feed:
                        self._add(name, np.min(feed[name]), np.max(feed[name]))
                ends = session.run(outputs, dict(feed)) if outputs else []
                for i, name in enumerate(inner):
                    self._add(name, ends[2 * i], ends[2 * i + 1])

    def _add(self, name: str, least: Any, most: Any) -> None:
        self._least[name].append(float(least))
        self._most[name].append(float(most))

    def compute_data(self) -> TensorsData:
        """The ranges over all feeds so far."""
        ranges = {}
        for name in self._names:
            if not self._least[name]:
                continue
            merge = (np.nanmean, np.nanmean) if self._moving_average else (np.nanmin, np.nanmax)
            least, most = merge[0](self._least[name]), merge[1](self._most[name])
            if self._symmetric:
                most = max(abs(least), abs(most))
                least = -most
            ranges[name] = (np.float32(least), np.float32(most))
        return TensorsData(CalibrationMethod.MinMax, ranges)


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


def _output_names(model: _inference.Model, folder: str) -> list[str]:
    path = Path(folder) / "outputs.onnx"
    write_model(model, path)
    return [each.name for each in InferenceSession(path).get_outputs()]


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
