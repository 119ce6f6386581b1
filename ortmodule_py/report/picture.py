"""The picture of `explain`: live bytes over the steps of forward and backward, stacked by module."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

_MOST_MODULES = 8
_MIB = 2**20


def draw(timelines: dict[str, dict[str, Any]], path: str | Path) -> None:
    """Draw `timelines` (`CompiledPiece.timeline` by title) below each other into the file `path`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.6 * len(timelines)))
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(timelines), 1, sharey=True, squeeze=False)
    axis: Any
    for axis, (title, timeline) in zip(axes.flat, timelines.items(), strict=True):
        stacks = _stacks(timeline)
        steps = range(timeline["steps"])
        axis.stackplot(
            steps,
            *[[value / _MIB for value in stack] for stack in stacks.values()],
            labels=list(stacks),
            step="post",
        )
        axis.axvline(timeline["forward_steps"], color="black", linewidth=0.8, linestyle="--")
        axis.set_title(f"{title}: peak {timeline['peak_bytes'] / _MIB:,.1f} MiB")
        axis.set_ylabel("MiB")
        axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=7)
    axes.flat[-1].set_xlabel("step (forward | backward)")
    figure.savefig(path, dpi=110, bbox_inches="tight")


def _stacks(timeline: dict[str, Any]) -> dict[str, list[int]]:
    """Live bytes at each step by module; the smaller modules are summed as "others"."""
    totals: dict[str, int] = defaultdict(int)
    for storage in timeline["storages"]:
        totals[_group(storage)] += storage["bytes"]
    largest = sorted(totals, key=lambda name: -totals[name])[:_MOST_MODULES]
    stacks = {name: [0] * timeline["steps"] for name in [*largest, "others"]}
    for storage in timeline["storages"]:
        name = _group(storage)
        stack = stacks[name if name in stacks else "others"]
        for step in range(storage["first_step"], storage["last_step"] + 1):
            stack[step] += storage["bytes"]
    return {name: stack for name, stack in stacks.items() if any(stack)}


def _group(storage: dict[str, Any]) -> str:
    if storage["kind"] == "gradient":
        return "gradients"
    parts = storage["module"].split(".")
    numbered = next((i for i, part in enumerate(parts) if part.isdigit()), 0)
    return ".".join(parts[: numbered + 1]) or "(no module)"
