"""Models as files: from a path, bytes or a ModelProto, to a path; and runs of both on samples."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ortmodule_py import _inference
from ortmodule_py.inference import InferenceSession, NoSuchFile
from ortmodule_py.inference.errors import translated
from ortmodule_py.quantization.report import OutputError, QuantizationReport, node_record

Feed = Mapping[str, Any]

# Files below it hold their weights; a message of protobuf has less than 2 GiB.
_LARGEST_FILE_BYTES = 2**31 - 2**26
_TINY = float(np.finfo(np.float32).tiny)  # instead of a scale of zero


def _path_or_bytes(model: Any) -> str | bytes:
    if hasattr(model, "SerializeToString"):
        model = model.SerializeToString()
    return bytes(model) if isinstance(model, (bytearray, memoryview)) else os.fspath(model)


def read_model(model: Any) -> _inference.Model:
    """A model from a path, its bytes, or a ModelProto. Raises NoSuchFile or InvalidProtobuf."""
    given = _path_or_bytes(model)
    if isinstance(given, str) and not os.path.isfile(given):
        raise NoSuchFile(f"[quantization] the model must be a file, but found {given!r}")
    with translated():
        return _inference.Model(given)


def write_model(model: _inference.Model, path: Any, external: bool = False) -> None:
    """Writes a model; its weights to `<path>.data` if asked for, or if they are too large."""
    with translated():
        model.write(os.fspath(path), 0 if external else _LARGEST_FILE_BYTES)


def size_bytes(model: Any) -> int:
    """Bytes of a model's file, with the files beside it that hold its data."""
    if hasattr(model, "ByteSize"):
        return int(model.ByteSize())
    if isinstance(model, (bytes, bytearray, memoryview)):
        return len(model)
    own = os.path.getsize(model)
    with translated():
        weights = _inference.Model(os.fspath(model)).weight_bytes
    # Weights that do not fit in the file are beside it.
    return own if weights <= own else own + weights


def has_external_data(model: Any) -> bool:
    """Whether weights of the model are in files beside it, or too large for one file."""
    if hasattr(model, "ByteSize") or isinstance(model, (bytes, bytearray, memoryview)):
        return size_bytes(model) > _LARGEST_FILE_BYTES
    return size_bytes(model) > os.path.getsize(model)


def feeds_of(samples: Any) -> list[Feed]:
    """A list of feeds from a list, one feed, a CalibrationDataReader, or None."""
    if samples is None:
        return []
    if isinstance(samples, Mapping):
        return [samples]
    if hasattr(samples, "get_next"):
        return list(iter(samples.get_next, None))
    if not isinstance(samples, Iterable):
        raise TypeError(
            f"[quantization] samples must be feeds (arrays by input name), but found {samples!r}"
        )
    return list(samples)


def output_error(exact: Any, found: Any) -> OutputError:
    """The difference of one array from another."""
    exact, found = (np.asarray(each, dtype=np.float64) for each in (exact, found))
    if exact.shape != found.shape:
        return OutputError(float("inf"), float("inf"))
    if exact.size == 0:
        return OutputError(0.0, 0.0)
    with np.errstate(invalid="ignore"):  # of infinity
        difference = np.abs(exact - found)
    difference[np.isnan(exact) & np.isnan(found)] = 0.0
    difference[exact == found] = 0.0
    finite = np.where(np.isfinite(exact), exact, 0.0)
    scale = max(float(np.abs(finite).max()), _TINY)
    norm = max(float(np.sqrt((finite**2).sum())), _TINY)
    largest, total = float(difference.max()), float(np.sqrt((difference**2).sum()))
    if not np.isfinite(largest):
        return OutputError(float("inf"), float("inf"))
    return OutputError(largest / scale, total / norm)


def output_errors(
    exact: InferenceSession, found: InferenceSession, feeds: Sequence[Feed]
) -> dict[str, OutputError]:
    """The worst differences of all outputs of numbers over the feeds."""
    worst: dict[str, OutputError] = {}
    for feed in feeds:
        pairs = zip(exact.run(None, feed), found.run(None, feed), strict=True)
        for node, (one, other) in zip(exact.get_outputs(), pairs, strict=True):
            if not isinstance(one, np.ndarray) or one.dtype.kind not in "fiub":
                continue
            error = output_error(one, other)
            known = worst.get(node.name, error)
            worst[node.name] = OutputError(
                max(error.largest, known.largest), max(error.relative, known.relative)
            )
    return worst


def write_with_report(
    source: Any,
    target: Any,
    model: _inference.Model,
    found: _inference.QuantizationReport,
    external: bool,
    feeds: Sequence[Feed] = (),
    verb: str = "quantized",
    verbose: bool = False,
) -> QuantizationReport:
    """Writes what became of the model `source`; returns what was done to it, and what it cost.

    The errors of the outputs are measured on `feeds`. `verbose` prints the report.
    """
    float_bytes = size_bytes(source)
    write_model(model, target, external)
    rows = [node_record(row) for row in found.rows()]
    report = QuantizationReport(float_bytes, size_bytes(target), rows, list(found.notes), verb=verb)
    if feeds:
        report.outputs = output_errors(session_of(source), session_of(target), feeds)
    if verbose:
        report.print()
    return report


def session_of(model: Any) -> InferenceSession:
    """A session of a path, bytes, a ModelProto, or a model that was read and changed."""
    if not isinstance(model, _inference.Model):
        return InferenceSession(_path_or_bytes(model))
    with tempfile.TemporaryDirectory() as folder:  # the session has mapped the files
        path = Path(folder, "model.onnx")
        write_model(model, path)
        return InferenceSession(path)


def ranges(
    model: _inference.Model, names: list[str], feeds: Iterable[Feed]
) -> Iterator[dict[str, tuple[float, float]]]:
    """The least and largest element of the computed values `names`, for each feed.

    The ends become outputs of `model`.
    """
    with translated():
        model.add_ranges(names)
    session = session_of(model)
    outputs = [node.name for node in session.get_outputs()][-2 * len(names) :]
    for feed in feeds:
        ends = map(float, session.run(outputs, dict(feed)) if names else [])
        yield dict(zip(names, zip(ends, ends, strict=True), strict=True))
