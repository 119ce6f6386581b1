"""What quantization did, node by node, and what it cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class WeightError:
    """A weight that became integers.

    `relative_error` is the root of the sum of squared errors over the sum of squares,
    `largest_error` the largest difference of an element. `origin` says what made the weight if it
    was no initializer: "Constant", "Transpose" ...
    """

    name: str
    origin: str
    float_bytes: int
    quantized_bytes: int
    relative_error: float
    largest_error: float


@dataclass
class NodeRecord:
    """A node that can be quantized.

    `note` says why it was not, or by what measurement it was. `error` is that of its output on the
    samples, of the largest value; `speedup` its time in float32 over its quantized time. Both are
    None if they were not measured.
    """

    name: str
    op: str
    output: str
    quantized: bool
    note: str
    weights: list[WeightError]
    error: float | None = None
    speedup: float | None = None

    @property
    def weight_bytes(self) -> int:
        """Bytes of the node's weights in the float model; those of shared ones count once."""
        return sum(weight.float_bytes for weight in self.weights)


@dataclass(frozen=True)
class OutputError:
    """The difference of an output from float32, over all samples.

    `largest` is the largest difference, of the largest value; `relative` the root of squared
    differences over squares.
    """

    largest: float
    relative: float


@dataclass
class QuantizationReport:
    """Bytes of the files, errors of the weights, and, with samples, errors of the outputs."""

    float_bytes: int
    quantized_bytes: int
    nodes: list[NodeRecord]
    notes: list[str] = field(default_factory=list)
    outputs: dict[str, OutputError] = field(default_factory=dict)
    speedup: float | None = None
    verb: str = "quantized"

    @property
    def quantized(self) -> list[NodeRecord]:
        """The nodes that were quantized."""
        return [node for node in self.nodes if node.quantized]

    @property
    def kept(self) -> list[NodeRecord]:
        """The nodes that stayed in float32; `note` says why."""
        return [node for node in self.nodes if not node.quantized]

    def __str__(self) -> str:
        return "\n".join(_lines(self))

    def print(self) -> None:
        """Prints the report."""
        print(self)


def node_record(row: Mapping[str, Any]) -> NodeRecord:
    """A row of the engine's report."""
    weights = [WeightError(**weight) for weight in row["weights"]]
    return NodeRecord(row["name"], row["op"], row["output"], row["quantized"], row["note"], weights)


def _lines(report: QuantizationReport) -> list[str]:
    before, after = report.float_bytes, report.quantized_bytes
    lines = [
        f"{report.verb} {len(report.quantized)} of {len(report.nodes)} nodes: "
        f"{_mib(before)} -> {_mib(after)} MiB ({_change(before, after)})"
    ]
    rows: list[tuple[str, ...]] = [
        ("node", "op", "MiB", "->", "weight error", "output error", "speed", "note")
    ]
    rows += [_row(node) for node in report.quantized]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    for row in rows if len(rows) > 1 else []:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        lines.append("  " + "  ".join([*cells, row[-1]]).rstrip())
    if report.kept:
        lines.append(f"kept in float32: {len(report.kept)} nodes")
        lines += [f"  {node.name or node.output} ({node.op}): {node.note}" for node in report.kept]
    for name, error in report.outputs.items():
        lines.append(
            f"output '{name}' on the samples: largest error {error.largest:.2%} of its largest "
            f"value, relative error {error.relative:.2%}"
        )
    if report.speedup is not None:
        lines.append(f"time of a run: {report.speedup:.2f}x as fast as float32, interleaved")
    return lines + report.notes


def _row(node: NodeRecord) -> tuple[str, ...]:
    origins = sorted({weight.origin for weight in node.weights if weight.origin})
    note = "; ".join([*(f"weight from {origin}" for origin in origins), *filter(None, [node.note])])
    errors = [weight.relative_error for weight in node.weights]
    return (
        node.name or node.output,
        node.op,
        _mib(node.weight_bytes),
        _mib(sum(weight.quantized_bytes for weight in node.weights)),
        f"{max(errors):.2%}" if errors else "shared",
        "" if node.error is None else f"{node.error:.2%}",
        "" if node.speedup is None else f"{node.speedup:.2f}x",
        note,
    )


def _change(before: int, after: int) -> str:
    if before == after:
        return "the same size"
    small, large = sorted((before, after))
    ratio = f"{large / max(1, small):.2f}x"
    return f"{ratio} smaller" if after < before else f"{ratio} larger"


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:.2f}"
