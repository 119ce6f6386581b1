"""Ranges that leave out rare values: by percentile, or with the least loss of information."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ortmodule_py.inference.errors import translated
from ortmodule_py.quantization.calibrate import CalibraterBase, MinMaxCalibrater
from ortmodule_py.quantization.kinds import CalibrationMethod
from ortmodule_py.quantization.model_files import read_model, session_of
from ortmodule_py.quantization.ranges import TensorData, TensorsData

Array = np.ndarray[Any, Any]
Feeds = list[Mapping[str, Any]]

_SMOOTHED = 0.0001  # that bins without an element get
_FEWEST_BINS = 512  # that a distribution is read from


class Histogram:
    """Counts of elements between `edges`, and their ends. Grows with later data.

    Data whose range is infinite, or so wide or narrow that float32 has no numbers between its bins
    (masks of -3.4e38), have ends only: `is_counted` is False.
    """

    def __init__(self, bins: int, of_magnitudes: bool) -> None:
        self._bins = bins
        self._of_magnitudes = of_magnitudes
        self._end: Any = None  # the largest magnitude that has a bin
        self._range: tuple[Any, Any] | None = None  # of bins of one width
        self.counts: Array | None = None
        self.is_counted = True
        self.edges: Array = np.zeros(0, np.float32)
        self.lowest: Any = None
        self.highest: Any = None

    def prepare(self, lowest: Any, highest: Any, least_magnitude: Any) -> None:
        """Widens the histogram for data with these ends, which `add` is then called with."""
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                self._prepare(lowest, highest, least_magnitude)
        except ValueError:  # of numpy: no such bins
            self.is_counted = False
            self.counts, self.edges = np.zeros(0, np.int64), np.zeros(0, np.float32)

    def _prepare(self, lowest: Any, highest: Any, least_magnitude: Any) -> None:
        largest = np.maximum(abs(lowest), abs(highest))
        if self.counts is None:
            self.lowest, self.highest = lowest, highest
            first = least_magnitude if self._of_magnitudes else -largest
            self._begin(first, largest, self._bins)
            return
        self.lowest = np.fmin(self.lowest, lowest)
        self.highest = np.fmax(self.highest, highest)
        if not self.is_counted or largest <= self._end:
            return
        if self._of_magnitudes:
            self._extend(largest)
        else:
            self._widen(largest)

    def _begin(self, first: Any, last: Any, bins: int) -> None:
        self.counts, edges = np.histogram(np.zeros(0, np.float32), bins, range=(first, last))
        self.edges = edges.astype(np.float32)
        self._range, self._end = (first, last), last

    def _widen(self, largest: Any) -> None:
        """Bins of the same width on both sides; data that were all zero have had none."""
        assert self.counts is not None
        kept, more, end = self.counts, 0, largest
        if self._end > 0:
            width = 2 * self._end / len(kept)
            more = int((largest - self._end) // width + 1)
            end = more * width + self._end
        self._begin(-end, end, len(kept) + 2 * more)
        self.counts[more : more + len(kept)] += kept

    def _extend(self, largest: Any) -> None:
        """Bins of the same width behind the last one."""
        assert self.counts is not None
        width = self.edges[1] - self.edges[0]
        more = np.arange(self.edges[-1] + width, largest + width, width)
        self.edges = np.hstack((self.edges, more)).astype(np.float32)
        self.counts = np.concatenate([self.counts, np.zeros(len(more), self.counts.dtype)])
        self._range, self._end = None, self.edges[-1]

    def add(self, data: Array) -> None:
        """Counts the elements of an array."""
        assert self.counts is not None
        if not self.is_counted:
            return
        data = abs(data.ravel()) if self._of_magnitudes else data.ravel()
        if self._range is None:
            self.counts += np.histogram(data, bins=self.edges)[0]
        else:
            self.counts += np.histogram(data, len(self.counts), range=self._range)[0]

    def clipped(self, low: Any, high: Any) -> tuple[Any, Any]:
        """The ends of the data where these are beyond them."""
        return np.float32(max(low, self.lowest)), np.float32(min(high, self.highest))


def _ends(data: Array) -> tuple[Any, Any, Any]:
    """The least and largest element and the least magnitude, without NaN unless all are."""
    flat = data.ravel()
    return np.fmin.reduce(flat), np.fmax.reduce(flat), np.fmin.reduce(abs(flat))


class HistogramCalibrater(CalibraterBase):
    """Counts the elements of each value, in two runs of each feed: for their ends, and for counts."""

    bins: int

    def __init__(
        self,
        model_path: Any,
        op_types_to_calibrate: Sequence[str] | None = None,
        augmented_model_path: Any = "augmented_model.onnx",
        use_external_data_format: bool = False,
        symmetric: bool = False,
        num_bins: int = 128,
        *,
        names: Sequence[str] | None = None,
    ) -> None:
        super().__init__(
            model_path,
            op_types_to_calibrate,
            augmented_model_path,
            symmetric,
            use_external_data_format,
            names=names,
        )
        counts_magnitudes = self.method is CalibrationMethod.Percentile and symmetric
        self._histograms = {name: Histogram(num_bins, counts_magnitudes) for name in self._names}

    def _collect(self, names: list[str], feeds: Feeds) -> None:
        seen: dict[str, list[Any]] = {name: [] for name in names}
        arrays = self._arrays(names)
        for feed in feeds:
            for name, data in arrays(feed):
                if data.size:
                    seen[name].append(_ends(data))
        for name, all_ends in seen.items():
            lowest, highest, least = np.transpose(all_ends or [(0, 0, 0)]).astype(np.float32)
            self._histograms[name].prepare(lowest.min(), highest.max(), least.min())
        for feed in feeds:
            for name, data in arrays(feed):
                self._histograms[name].add(data)

    def _arrays(
        self, names: list[str]
    ) -> Callable[[Mapping[str, Any]], Iterator[tuple[str, Array]]]:
        """What gives the arrays of a feed by name."""
        model = read_model(self._model)
        produced = {name for _, _, _, _, outputs in model.nodes() for name in outputs}
        inner = [name for name in names if name in produced]
        with translated():
            model.expose(inner)
        session = session_of(model)

        def run(feed: Mapping[str, Any]) -> Iterator[tuple[str, Array]]:
            computed = session.run(inner, dict(feed)) if inner else []
            for name, data in zip(inner, computed, strict=True):
                yield name, data.astype(np.float32, copy=False)
            for name in names:
                if name in feed:
                    yield name, np.asarray(feed[name], np.float32)

        return run

    def compute_data(self) -> TensorsData:
        """The ranges over all feeds so far. Raises ValueError if there were none."""
        found = {}
        for name, histogram in self._histograms.items():
            if histogram.counts is None:
                raise ValueError("[quantization] collect_data() must be called before")
            found[name] = self._data_of(histogram)
        return TensorsData(self.method, found)

    def _data_of(self, histogram: Histogram) -> Any:
        if not histogram.is_counted:
            return histogram.lowest, histogram.highest
        return (*self._range_of(histogram), histogram.counts, histogram.edges)

    @abstractmethod
    def _range_of(self, histogram: Histogram) -> tuple[Any, Any]:
        """The ends that a quantized value is to have."""


class PercentileCalibrater(HistogramCalibrater):
    """Ranges that hold `percentile` percent of the elements, or of their magnitudes if `symmetric`."""

    method = CalibrationMethod.Percentile

    def __init__(
        self,
        model_path: Any,
        op_types_to_calibrate: Sequence[str] | None = None,
        augmented_model_path: Any = "augmented_model.onnx",
        use_external_data_format: bool = False,
        method: str = "percentile",
        symmetric: bool = False,
        num_bins: int = 2048,
        percentile: float = 99.999,
        *,
        names: Sequence[str] | None = None,
    ) -> None:
        if not 0 <= percentile <= 100:
            raise ValueError(
                f"[quantization] percentile must be from 0 to 100, but found {percentile}"
            )
        super().__init__(
            model_path,
            op_types_to_calibrate,
            augmented_model_path,
            use_external_data_format,
            symmetric,
            num_bins,
            names=names,
        )
        self._percentile = percentile

    def _range_of(self, histogram: Histogram) -> tuple[Any, Any]:
        counts, edges = histogram.counts, histogram.edges
        assert counts is not None
        shares = np.cumsum(counts / max(counts.sum(), 1))
        if self.symmetric:
            end = edges[np.searchsorted(shares, self._percentile / 100.0)]
            return histogram.clipped(-end, end)
        outside = (100.0 - self._percentile) / 200.0
        first, last = np.searchsorted(shares, outside), np.searchsorted(shares, 1.0 - outside)
        return histogram.clipped(edges[first], edges[last])


class EntropyCalibrater(HistogramCalibrater):
    """Ranges whose quantized elements are distributed most like the elements themselves.

    `num_quantized_bins` is how many of them a quantized type tells apart.
    """

    method = CalibrationMethod.Entropy

    def __init__(
        self,
        model_path: Any,
        op_types_to_calibrate: Sequence[str] | None = None,
        augmented_model_path: Any = "augmented_model.onnx",
        use_external_data_format: bool = False,
        method: str = "entropy",
        symmetric: bool = False,
        num_bins: int = 128,
        num_quantized_bins: int = 128,
        *,
        names: Sequence[str] | None = None,
    ) -> None:
        super().__init__(
            model_path,
            op_types_to_calibrate,
            augmented_model_path,
            use_external_data_format,
            symmetric,
            num_bins,
            names=names,
        )
        self._quantized_bins = num_quantized_bins

    def _range_of(self, histogram: Histogram) -> tuple[Any, Any]:
        counts, edges = histogram.counts, histogram.edges
        assert counts is not None
        middle = counts.size // 2
        ends = [
            (middle - half, min(middle + half + 1, counts.size))
            for half in range(self._quantized_bins // 2, middle + 1)
        ]
        losses = [_loss(counts, *each, self._quantized_bins) for each in ends]
        first, last = ends[int(np.argmin(losses))]
        return histogram.clipped(edges[first], edges[last])


def _loss(counts: Array, first: int, last: int, quantized: int) -> Any:
    """How far the counts in a range, when `quantized` bins hold them, are from all counts.

    The Kullback-Leibler divergence, of the counts with those outside of the range in its last bins.
    """
    inside = counts[first:last]
    clipped = inside.copy()
    clipped[0] += counts[:first].sum()
    clipped[-1] += counts[last:].sum()
    merged = inside.size // quantized
    whole = merged * quantized
    sums = inside[:whole].reshape(quantized, merged).sum(axis=1)
    sums[-1] += inside[whole:].sum()
    filled = (clipped[:whole] != 0).reshape(quantized, merged).sum(axis=1)
    spread: Array = np.zeros(inside.size, np.int64)
    spread[:whole] = np.repeat(np.where(filled, sums / np.maximum(filled, 1), 0), merged)
    one, other = _smoothed(clipped), _smoothed(spread)
    if one is None or other is None:
        return np.float32(np.inf)
    one, other = one / one.sum(), other / other.sum()
    return (one * np.log(one / other)).sum()


def _smoothed(counts: Array) -> Array | None:
    """The counts with a little of each taken to those that are 0; None if all are."""
    empty = (counts == 0).astype(np.float32)
    filled = counts.size - empty.sum()
    if not filled:
        return None
    taken = _SMOOTHED * float(empty.sum()) / float(filled)
    smoothed: Array = counts.astype(np.float32)
    smoothed += _SMOOTHED * empty - taken * (counts != 0).astype(np.float32)
    return smoothed


class DistributionCalibrater(HistogramCalibrater):
    """The whole ranges, with mean and deviation of the elements, or of their cubic roots ("p3")."""

    method = CalibrationMethod.Distribution

    def __init__(
        self,
        model_path: Any,
        op_types_to_calibrate: Sequence[str] | None = None,
        augmented_model_path: Any = "augmented_model.onnx",
        use_external_data_format: bool = False,
        method: str = "distribution",
        num_bins: int = 128,
        scenario: str = "same",
        *,
        names: Sequence[str] | None = None,
    ) -> None:
        if scenario not in ("same", "p3"):
            raise ValueError(
                f"[quantization] scenario must be 'same' or 'p3', but found {scenario!r}"
            )
        super().__init__(
            model_path,
            op_types_to_calibrate,
            augmented_model_path,
            use_external_data_format,
            num_bins=num_bins,
            names=names,
        )
        self._bins, self._scenario = num_bins, scenario

    def compute_data(self) -> TensorsData:
        """The ranges over all feeds so far. Raises ValueError if there were none, or few bins."""
        if self._bins < _FEWEST_BINS:
            raise ValueError(
                f"[quantization] num_bins must be at least {_FEWEST_BINS}, but found {self._bins}"
            )
        return super().compute_data()

    def _range_of(self, histogram: Histogram) -> tuple[Any, Any]:
        return histogram.edges.min(), histogram.edges.max()

    def _data_of(self, histogram: Histogram) -> Any:
        counts, edges = histogram.counts, histogram.edges
        assert counts is not None
        if not histogram.is_counted:
            return super()._data_of(histogram)
        values = (edges[:-1] + edges[1:]) * 0.5
        if self._scenario == "p3":
            values = np.abs(values) ** (1.0 / 3.0) * np.sign(values)
        mean = (counts * values).sum() / counts.sum()
        deviation = ((counts * values**2).sum() / counts.sum() - mean**2) ** 0.5
        lowest, highest = self._range_of(histogram)
        return TensorData(
            avg=mean,
            std=deviation,
            hist=counts,
            hist_edges=edges,
            lowest=lowest,
            highest=highest,
        )


def create_calibrator(
    model: Any,
    op_types_to_calibrate: Sequence[str] | None = None,
    augmented_model_path: Any = "augmented_model.onnx",
    calibrate_method: Any = CalibrationMethod.MinMax,
    use_external_data_format: bool = False,
    providers: Any = None,
    extra_options: Mapping[str, Any] | None = None,
    *,
    names: Sequence[str] | None = None,
) -> CalibraterBase:
    """A calibrater of that method. Its arguments, and the keys of `extra_options`, are the class's.

    Raises ValueError for options that the class does not take.
    """
    options = dict(extra_options or {})
    name = getattr(calibrate_method, "name", calibrate_method)
    kinds: dict[Any, Any] = {
        "MinMax": MinMaxCalibrater,
        "Percentile": PercentileCalibrater,
        "Entropy": EntropyCalibrater,
        "Distribution": DistributionCalibrater,
    }
    if name not in kinds:
        raise ValueError(
            f"[quantization] calibrate_method must be one of {list(kinds)}, but found {name}"
        )
    if name == "Percentile":
        options.setdefault("symmetric", True)
    if name == "Distribution":
        options.setdefault("num_bins", 2048)
        options.pop("symmetric", None)  # which the method does not read, as in onnxruntime
    try:
        return kinds[name](model, op_types_to_calibrate, names=names, **options)
    except TypeError as error:
        raise ValueError(f"[quantization] options of {name} calibration: {error}") from None
