"""The plan of a run as a table and as a picture."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ortmodule_py.inference.memory import MemoryReport

_LARGEST = 10
_LABELS = 12
_COLORS = 10
_MIB = 2**20


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
        peak = timeline["peak_step"]
        alive = [s for s in timeline["storages"] if s["first_step"] <= peak <= s["last_step"]]
        alive.sort(key=lambda storage: -storage["bytes"])
        return InferenceExplanation(
            memory, timeline["steps"], peak, len(alive), alive[:_LARGEST], timeline
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

    def save_picture(self, path: str | Path) -> None:
        """Draws every tensor as a rectangle: its steps, and its bytes in the block or above it, where
        outputs are. matplotlib takes the format from the ending (`.png`, `.svg`, `.pdf`).

        Raises:
            ImportError: matplotlib is not installed.
        """
        _draw(self.timeline, path)


def _draw(timeline: dict[str, Any], path: str | Path) -> None:
    from matplotlib import colormaps
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    figure = Figure(figsize=(12, 5))
    FigureCanvasAgg(figure)
    axis: Any = figure.subplots()
    placed = _placed(timeline)
    largest = sorted(placed, key=lambda s: -s["bytes"])
    colors = _colors(largest, colormaps["tab10"])
    for storage, bottom in [(s, s["bottom"]) for s in largest]:
        width = storage["last_step"] - storage["first_step"] + 1
        corner = (storage["first_step"], bottom / _MIB)
        axis.add_patch(
            Rectangle(
                corner,
                width,
                storage["bytes"] / _MIB,
                facecolor=colors.get(storage["op"], "lightgray"),
                edgecolor="black",
                linewidth=0.3,
            )
        )
    for storage in largest[:_LABELS]:
        middle = (storage["first_step"] + storage["last_step"] + 1) / 2
        axis.text(
            middle,
            (storage["bottom"] + storage["bytes"] / 2) / _MIB,
            storage["node"] or storage["name"],
            ha="center",
            va="center",
            fontsize=5,
            clip_on=True,
        )
    live = [value / _MIB for value in timeline["live_bytes"]]
    axis.step(range(len(live)), live, where="post", color="black", label="allocated")
    axis.axvline(timeline["peak_step"] + 0.5, color="black", linewidth=0.8, linestyle="--")
    for op, color in colors.items():
        axis.add_patch(Rectangle((0, 0), 0, 0, facecolor=color, label=op))
    top = max([s["bottom"] + s["bytes"] for s in placed], default=1) / _MIB
    axis.set_xlim(0, max(timeline["steps"], 1))
    axis.set_ylim(0, 1.05 * max([top, *live]))
    axis.set_title(f"peak {timeline['peak_bytes']:,} bytes, block {timeline['block_bytes']:,}")
    axis.set_xlabel("step")
    axis.set_ylabel("MiB")
    axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=7)
    figure.savefig(path, dpi=130, bbox_inches="tight")


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


def _colors(largest: list[dict[str, Any]], colors: Any) -> dict[str, Any]:
    ops = list(dict.fromkeys(storage["op"] for storage in largest))
    return {op: colors(i) for i, op in enumerate(ops[:_COLORS])}
