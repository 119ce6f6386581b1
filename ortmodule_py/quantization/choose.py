"""Quantizes a node where that is faster on this machine and exact enough: measured, node by node."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ortmodule_py import _inference
from ortmodule_py.inference import InferenceSession, InvalidGraph, NotImplemented
from ortmodule_py.inference.errors import translated
from ortmodule_py.inference.ort_value import element_type_number
from ortmodule_py.quantization.model_files import (
    Feed,
    output_error,
    output_errors,
    read_model,
    session_of,
    write_with_report,
)
from ortmodule_py.quantization.report import NodeRecord, QuantizationReport, node_record

_NODES_AT_ONCE = 16  # whose inputs are kept in memory together
_MEASURED_FEEDS = 4  # of the samples, for the error of a node; the whole model is run on all
_PAIR_SECONDS = 0.05  # of measuring one node
_HOPELESS = 3.0  # times the time in float32: one pair of runs says enough
_FASTER = 0.97  # a quantized product takes at most that part of its time in float32
_MOVES = ("Gather", "Transpose")  # they compute nothing and are quantized for their bytes
_MOVE_SHARE = 0.005  # of the model's time that one of them may add


@dataclass
class _Trial:
    """A node with what was measured."""

    record: NodeRecord
    float_s: float = 0.0
    quantized_s: float = 0.0

    @property
    def gain_s(self) -> float:
        return self.float_s - self.quantized_s


def choose_faster(
    model_input: Any,
    model_output: Any,
    options: _inference.DynamicQuantization,
    feeds: Sequence[Feed],
    max_error: float,
    external: bool,
) -> QuantizationReport:
    """Measures, quantizes what gains, and takes back nodes until error and time of the whole hold.

    The report has, for each node, the measurements that decided.
    """
    with translated():
        rows = read_model(model_input).quantize_dynamic(options).rows()
    trials = [_Trial(node_record(row)) for row in rows if row["quantized"]]
    exact = session_of(model_input)
    model_s = statistics.median(_seconds(lambda: exact.run(None, feeds[0])) for _ in range(3))
    _measure(model_input, trials, options, feeds)
    chosen = _decide(trials, max_error, model_s)
    while True:
        report = _write(model_input, model_output, options, chosen, external)
        found = session_of(model_output)
        report.outputs = output_errors(exact, found, feeds)
        report.speedup = _speedup(exact, found, feeds[0]) if chosen else 1.0
        worst = max((error.largest for error in report.outputs.values()), default=0.0)
        if not chosen or (worst <= max_error and report.speedup >= 1.0):
            break
        chosen = _fewer(chosen, by_error=worst > max_error)
    obstacles = {row["output"]: row["note"] for row in rows if not row["quantized"]}
    _explain(report, trials, obstacles)
    return report


def _fewer(chosen: list[_Trial], by_error: bool) -> list[_Trial]:
    """Half of the nodes: those with the least errors, or those that gain the most."""
    if by_error:
        ordered = sorted(chosen, key=lambda trial: trial.record.error or 0.0)
        reason = "taken back: the model's error was beyond the bound with it"
    else:
        ordered = sorted(chosen, key=lambda trial: -trial.gain_s)
        reason = "taken back: the model was not faster with it"
    for trial in ordered[len(ordered) // 2 :]:
        trial.record.note = reason
    return ordered[: len(ordered) // 2]


def _decide(trials: list[_Trial], max_error: float, model_s: float) -> list[_Trial]:
    chosen = []
    for trial in trials:
        record = trial.record
        if record.error is None:
            continue  # the note says why
        limit_s = trial.float_s * _FASTER
        if record.op in _MOVES:
            limit_s = trial.float_s + _MOVE_SHARE * model_s
        times = f"{trial.quantized_s * 1e6:.0f} us instead of {trial.float_s * 1e6:.0f} us"
        if record.error > max_error:
            record.note = f"error {record.error:.2%} is beyond {max_error:.2%}"
        elif trial.quantized_s > limit_s:
            record.note = f"slower: {times}"
        else:
            record.note = times
            chosen.append(trial)
    return chosen


def _write(
    model_input: Any,
    model_output: Any,
    options: _inference.DynamicQuantization,
    chosen: list[_Trial],
    external: bool,
) -> QuantizationReport:
    outputs = {trial.record.output for trial in chosen}
    model = read_model(model_input)
    with translated():
        rows = model.copy().quantize_dynamic(options).rows()
        kept = {row["output"] for row in rows if row["output"] not in outputs}
        narrowed = _inference.DynamicQuantization(options)
        narrowed.outputs_to_keep = kept
        found = model.quantize_dynamic(narrowed)
    return write_with_report(model_input, model_output, model, found, external)


def _explain(report: QuantizationReport, trials: list[_Trial], obstacles: dict[str, str]) -> None:
    by_output = {trial.record.output: trial for trial in trials}
    for node in report.nodes:
        trial = by_output.get(node.output)
        if trial is None:  # it cannot be quantized
            node.note = obstacles.get(node.output, node.note)
            continue
        node.note = trial.record.note
        node.error = trial.record.error
        if trial.quantized_s:
            node.speedup = trial.float_s / trial.quantized_s


# ---- measurements ------------------------------------------------------------------------------


def _measure(
    model_input: Any,
    trials: list[_Trial],
    options: _inference.DynamicQuantization,
    feeds: Sequence[Feed],
) -> None:
    model = read_model(model_input)
    outputs = {name for _, _, _, _, names in model.nodes() for name in names[:1]}
    times: dict[Any, tuple[float, float]] = {}
    inner = [trial for trial in trials if trial.record.output in outputs]
    for trial in trials:
        if trial.record.output not in outputs:
            trial.record.note = "in a subgraph, where it is not measured"
    for at in range(0, len(inner), _NODES_AT_ONCE):
        part = inner[at : at + _NODES_AT_ONCE]
        values = _values(model, part, feeds[:_MEASURED_FEEDS])
        for trial in part:
            try:
                _measure_node(model, trial, options, values, times)
            except (NotImplemented, InvalidGraph) as error:
                trial.record.note = f"cannot be run alone: {error}"


def _values(
    model: _inference.Model, trials: list[_Trial], feeds: Sequence[Feed]
) -> list[dict[str, Any]]:
    """The computed inputs of the nodes, for each feed."""
    names = sorted({name for t in trials for name in model.computed_inputs(t.record.output)})
    exposed = model.copy()
    produced = {name for _, _, _, _, outputs in model.nodes() for name in outputs}
    have = [name for name in names if name in produced]
    with translated():
        exposed.expose(have)
    session = session_of(exposed)
    result = []
    for feed in feeds:
        values = {name: np.asarray(feed[name]) for name in names if name in feed}
        values.update(zip(have, session.run(have, feed), strict=True) if have else ())
        result.append(values)
    return result


def _measure_node(
    model: _inference.Model,
    trial: _Trial,
    options: _inference.DynamicQuantization,
    values: list[dict[str, Any]],
    times: dict[Any, tuple[float, float]],
) -> None:
    record = trial.record
    names = model.computed_inputs(record.output)
    arrays = [{name: each[name] for name in names} for each in values]
    types = {
        name: (element_type_number(array.dtype), list(array.shape))
        for name, array in arrays[0].items()
    }
    cut = model.cut(record.output, types)
    exact = session_of(cut)
    alone = _inference.DynamicQuantization(options)
    alone.nodes_to_quantize = set()
    alone.op_types = set()
    alone.force_direct = True
    with translated():
        cut.quantize_dynamic(alone)
    found = session_of(cut)
    fits = [each for each in arrays if all(list(each[n].shape) == types[n][1] for n in names)]
    errors = [
        output_error(one, other).largest
        for feed in fits
        for one, other in zip(exact.run(None, feed), found.run(None, feed), strict=True)
    ]
    record.error = max(errors, default=0.0)
    weights = tuple((weight.float_bytes, weight.origin) for weight in record.weights)
    key = (record.op, weights, tuple(str(kind) for kind in types.values()))
    if key not in times:
        times[key] = _times(partial(exact.run, None, fits[0]), partial(found.run, None, fits[0]))
    trial.float_s, trial.quantized_s = times[key]


def _times(one: Callable[[], Any], other: Callable[[], Any]) -> tuple[float, float]:
    """Median seconds of both, interleaved."""
    one(), other()
    pairs = _interleaved(one, other, 0.0, 1, 1)
    if pairs[0][1] <= _HOPELESS * pairs[0][0]:
        pairs += _interleaved(one, other, _PAIR_SECONDS, 4, 199)
    return statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs)


def _interleaved(
    one: Callable[[], Any], other: Callable[[], Any], seconds: float, least: int, most: int
) -> list[tuple[float, float]]:
    """Seconds of both, which take turns: `least` to `most` times, within `seconds`."""
    pairs: list[tuple[float, float]] = []
    end = time.perf_counter() + seconds
    while len(pairs) < least or (time.perf_counter() < end and len(pairs) < most):
        pairs.append((_seconds(one), _seconds(other)))
    return pairs


def _seconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _speedup(exact: InferenceSession, found: InferenceSession, feed: Feed) -> float:
    """Median of the ratios of neighbouring runs."""
    one, other = partial(exact.run, None, feed), partial(found.run, None, feed)
    one(), other()
    return statistics.median(a / b for a, b in _interleaved(one, other, 1.0, 7, 101))
