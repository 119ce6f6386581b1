"""The plan of a run as a table and as a picture."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ortmodule_py.inference import chart, html
from ortmodule_py.inference.memory import MemoryReport

LARGEST = 10
_LABELS = 24
_LABEL_POINTS = 9
_SIZE = (11.0, 4.6)


def alive_at_peak(timeline: dict[str, Any]) -> list[dict[str, Any]]:
    """The storages that are alive at the step of the peak, the largest first."""
    peak = timeline["peak_step"]
    alive = [s for s in timeline["storages"] if s["first_step"] <= peak <= s["last_step"]]
    return sorted(alive, key=lambda storage: -storage["bytes"])


@dataclass(frozen=True)
class InferenceExplanation:
    """Where the memory of a run goes, from its plan; nothing has to run.

    `largest_at_peak` has the largest tensors that are alive at the step of the peak: `name`, `op`,
    `node` (the model's name of it), `bytes`, `kind` ("forward" for temporaries, "output",
    "workspace"), `first_step` and `last_step`, and `offset_bytes` in the block. `timeline` has all.
    """

    memory: MemoryReport
    steps: int
    peak_step: int
    alive_at_peak: int
    largest_at_peak: list[dict[str, Any]]
    timeline: dict[str, Any] = field(repr=False)

    @staticmethod
    def of(memory: MemoryReport, timeline: dict[str, Any]) -> InferenceExplanation:
        """The explanation of a plan's timeline."""
        alive, steps = alive_at_peak(timeline), timeline["steps"]
        return InferenceExplanation(
            memory, steps, timeline["peak_step"], len(alive), alive[:LARGEST], timeline
        )

    def as_json(self, indent: int | None = 2) -> str:
        """All but the timeline as JSON."""
        values = asdict(self)
        del values["timeline"]
        return json.dumps(values, indent=indent)

    def __str__(self) -> str:
        memory = self.memory
        lines = [
            f"A run takes {memory.total_bytes:,} bytes at its peak: weights {memory.weights_bytes:,}, "
            f"run {memory.peak_bytes:,} (block {memory.block_bytes:,}, outputs {memory.outputs_bytes:,})",
            f"Peak at step {self.peak_step} of {self.steps}; largest tensors alive there "
            f"({len(self.largest_at_peak)} of {self.alive_at_peak}):",
            f"  {'bytes':>15}  {'kind':<9} {'steps':<11} {'op':<24} node",
        ]
        for item in self.largest_at_peak:
            steps = f"{item['first_step']}..{item['last_step']}"
            lines.append(
                f"  {item['bytes']:>15,}  {item['kind']:<9} {steps:<11} {item['op']:<24} "
                f"{item['node'] or item['name']}"
            )
        return "\n".join(lines)

    def save_picture(self, path: str | Path, dark: bool = False) -> None:
        """Draws every tensor as a rectangle: its steps, and its bytes in the block or above it, where
        outputs are. matplotlib takes the format from the ending (`.png`, `.svg`, `.pdf`).

        Args:
            path: the file to write.
            dark: draw on a dark background.

        Raises:
            ImportError: matplotlib is not installed.
        """
        chart.save(partial(_draw, self.timeline), _SIZE, path, dark)

    def _repr_html_(self) -> str:
        """For notebooks: the figures, the picture, and a table to unfold."""
        names = ("bytes", "kind", "op", "name", "first_step", "last_step")
        title = f"The {len(self.largest_at_peak)} largest tensors at the peak"
        return html.block(
            html.paragraph(str(self).splitlines()[0], strong=True),
            chart.svg(partial(_draw, self.timeline), _SIZE),
            html.folded_table(title, names, self.largest_at_peak),
        )


def _draw(timeline: dict[str, Any], figure: Any) -> None:
    from matplotlib.patches import Patch, Rectangle

    axis = figure.subplots()
    ink = axis.xaxis.label.get_color()
    placed = _placed(timeline)
    largest = sorted(placed, key=lambda s: -s["bytes"])
    colors = _colors(largest)
    live = [value / chart.MIB for value in timeline["live_bytes"]]
    top = max([s["bottom"] + s["bytes"] for s in placed], default=1) / chart.MIB
    axis.set_xlim(0, max(timeline["steps"], 1))
    axis.set_ylim(0, 1.05 * max([top, *live]))
    for storage in largest:
        corner = (storage["first_step"], storage["bottom"] / chart.MIB)
        width = storage["last_step"] - storage["first_step"] + 1
        color = colors.get(storage["op"], chart.OTHERS)
        height = storage["bytes"] / chart.MIB
        axis.add_patch(Rectangle(corner, width, height, fc=color, ec="black", linewidth=0.4))
    (line,) = axis.step(
        range(len(live)), live, where="post", color=ink, linewidth=1.5, label="allocated"
    )
    axis.axvline(timeline["peak_step"] + 0.5, color=ink, linewidth=1, linestyle="--")
    peak, block = (chart.bytes_text(timeline[f"{name}_bytes"]) for name in ("peak", "block"))
    axis.set_title(f"peak {peak} at step {timeline['peak_step']}, block {block}", loc="left")
    axis.set_xlabel("step")
    axis.set_ylabel("MiB")
    rows = [Patch(facecolor=color, label=_legend(op, largest)) for op, color in colors.items()]
    axis.legend(handles=[line, *rows], loc="upper left", bbox_to_anchor=(1.0, 1.03))
    figure.tight_layout()
    for storage in largest[:_LABELS]:
        _label(axis, storage)


def _legend(op: str, storages: list[dict[str, Any]]) -> str:
    """The op with the bytes of all its tensors and their share."""
    own = sum(s["bytes"] for s in storages if s["op"] == op)
    share = own / max(sum(s["bytes"] for s in storages), 1)
    return f"{op}  {chart.bytes_text(own)}, {share:.0%}"


def _label(axis: Any, storage: dict[str, Any]) -> None:
    """Writes the name into the rectangle of a tensor if there is room for it."""
    first, last = storage["first_step"], storage["last_step"] + 1
    bottom, top = (
        value / chart.MIB for value in (storage["bottom"], storage["bottom"] + storage["bytes"])
    )
    (left, low), (right, high) = axis.transData.transform([(first, bottom), (last, top)])
    name = storage["node"] or storage["name"]
    pixels = axis.figure.dpi / 72
    if high - low < 12 * pixels or right - left < (0.62 * _LABEL_POINTS * len(name) + 4) * pixels:
        return
    middle = ((first + last) / 2, (bottom + top) / 2)
    axis.text(*middle, name, ha="center", va="center", fontsize=_LABEL_POINTS, color="black")


def _placed(timeline: dict[str, Any]) -> list[dict[str, Any]]:
    """The storages with `bottom`: their offset in the block; others stand above it, on those that are
    alive with them."""
    placed: list[dict[str, Any]] = []
    above: list[dict[str, Any]] = []
    for storage in timeline["storages"]:
        item = {**storage, "bottom": storage["offset_bytes"]}
        if item["bottom"] is None:
            beside = [s for s in above if s["last_step"] >= item["first_step"]]
            item["bottom"] = max(
                [s["bottom"] + s["bytes"] for s in beside], default=timeline["block_bytes"]
            )
            above.append(item)
        placed.append(item)
    return placed


def _colors(largest: list[dict[str, Any]]) -> dict[str, str]:
    """A colour for the ops of the largest tensors, in the order in which they run."""
    ops = list(dict.fromkeys(storage["op"] for storage in largest))[: len(chart.COLORS)]
    first = {op: min(s["first_step"] for s in largest if s["op"] == op) for op in ops}
    return dict(zip(sorted(ops, key=first.__getitem__), chart.COLORS, strict=False))
