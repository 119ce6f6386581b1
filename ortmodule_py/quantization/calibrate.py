"""Ranges of the values of a model, measured with its own session."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ortmodule_py.inference.errors import translated
from ortmodule_py.quantization.kinds import CalibrationMethod
from ortmodule_py.quantization.model_files import feeds_of, ranges, read_model, session_of
from ortmodule_py.quantization.ranges import TensorsData

_VALUES_AT_ONCE = 256  # that one session computes
_FLOATS = ("tensor(float)", "tensor(float16)")


class CalibraterBase(ABC):
    """Collects facts about values of a model.

    Args:
        model_path: path, bytes or ModelProto of the float model.
        op_types_to_calibrate: the operators whose operands and results count, None for all.
        augmented_model_path: accepted; no file is written.
        symmetric: ranges become [-a, a].
        use_external_data_format: accepted; no file is written.
        per_channel: must be False: a value has one range.
        names: the values, in place of those of the operators.
    """

    method: CalibrationMethod

    def __init__(
        self,
        model_path: Any,
        op_types_to_calibrate: Sequence[str] | None = None,
        augmented_model_path: Any = "augmented_model.onnx",
        symmetric: bool = False,
        use_external_data_format: bool = False,
        per_channel: bool = False,
        *,
        names: Sequence[str] | None = None,
    ) -> None:
        if per_channel:
            raise ValueError("[quantization] per_channel must be False: a value has one range")
        self.symmetric = symmetric
        self._model = model_path
        self._names = _floats_of(model_path, op_types_to_calibrate) if names is None else [*names]

    def collect_data(self, data_reader: Any) -> None:
        """Runs all feeds of a CalibrationDataReader. Raises ValueError if there are none."""
        feeds = feeds_of(data_reader)
        if not feeds:
            raise ValueError("[quantization] calibration needs feeds, but the reader gave none")
        for at in range(0, len(self._names), _VALUES_AT_ONCE):
            self._collect(self._names[at : at + _VALUES_AT_ONCE], feeds)

    @abstractmethod
    def _collect(self, names: list[str], feeds: list[Mapping[str, Any]]) -> None:
        """Adds the values called `names` over these feeds."""

    @abstractmethod
    def compute_data(self) -> TensorsData:
        """The ranges over all feeds so far."""


class MinMaxCalibrater(CalibraterBase):
    """The least and largest element of each value over all feeds.

    Args as for CalibraterBase, and:
        moving_average: the mean of the feeds' ranges instead of their extremes.
        averaging_constant: accepted; the mean has equal weights.
        max_intermediate_outputs: accepted; only ends are kept.
    """

    method = CalibrationMethod.MinMax

    def __init__(
        self,
        model_path: Any,
        op_types_to_calibrate: Sequence[str] | None = None,
        augmented_model_path: Any = "augmented_model.onnx",
        symmetric: bool = False,
        use_external_data_format: bool = False,
        moving_average: bool = False,
        averaging_constant: float = 0.01,
        max_intermediate_outputs: int | None = None,
        per_channel: bool = False,
        *,
        names: Sequence[str] | None = None,
    ) -> None:
        super().__init__(
            model_path,
            op_types_to_calibrate,
            augmented_model_path,
            symmetric,
            use_external_data_format,
            per_channel,
            names=names,
        )
        self._moving_average = moving_average
        self._ends: dict[str, list[tuple[float, float]]] = {name: [] for name in self._names}

    def _collect(self, names: list[str], feeds: list[Mapping[str, Any]]) -> None:
        model = read_model(self._model)
        produced = {name for _, _, _, _, outputs in model.nodes() for name in outputs}
        inner = [name for name in names if name in produced]
        for feed, computed in zip(feeds, ranges(model, inner, feeds), strict=True):
            for name in names:
                if name in feed:
                    fed = np.asarray(feed[name])
                    self._ends[name].append((float(fed.min()), float(fed.max())))
            for name, ends in computed.items():
                self._ends[name].append(ends)

    def compute_data(self) -> TensorsData:
        """The ranges over all feeds so far."""
        found = {}
        for name, ends in self._ends.items():
            if not ends:
                continue
            least, most = np.transpose(ends)
            # Without NaN, unless all are.
            if self._moving_average and not np.isnan(least).all():
                low, high = np.nanmean(least), np.nanmean(most)
            else:
                low, high = np.fmin.reduce(least), np.fmax.reduce(most)
            if self.symmetric:
                high = max(abs(low), abs(high))
                low = -high
            found[name] = (np.float32(low), np.float32(high))
        return TensorsData(self.method, found)


def _floats_of(model: Any, op_types: Iterable[str] | None) -> list[str]:
    """The floats that nodes of these types read or write, without constants, in their order."""
    file = read_model(model)
    with translated():
        floats = set(file.computed_floats())
    floats |= {each.name for each in session_of(model).get_inputs() if each.type in _FLOATS}
    wanted = set(op_types or ())
    found = dict.fromkeys(
        name
        for _, _, op, inputs, outputs in file.nodes()
        if not wanted or op in wanted
        for name in (*inputs, *outputs)
    )
    return [name for name in found if name in floats]
