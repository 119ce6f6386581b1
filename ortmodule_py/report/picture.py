"""The picture of `explain`: live bytes over the steps of forward and backward, stacked by module."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ortmodule_py.inference import chart

_MOST_MODULES = 8
_GRADIENTS = "gradients"
_OTHERS = "others"
_TITLES = {"before": "without the memory optimizer", "after": "as planned"}

Timelines = dict[str, dict[str, Any]]


def draw(timelines: Timelines, path: str | Path, dark: bool = False) -> None:
    """Draw `timelines` (`CompiledPiece.timeline` by title) below each other into the file `path`."""
    shown = _shown(timelines)
    chart.save(_drawing(shown), _size(shown), path, dark)


def svg(timelines: Timelines) -> str:
    """The same as an `<svg>` element; "" without matplotlib."""
    shown = _shown(timelines)
    return chart.svg(_drawing(shown), _size(shown))


def _shown(timelines: Timelines) -> Timelines:
    """Without the second of two equal panels: nothing is recomputed."""
    before, after = timelines.get("before"), timelines.get("after")
    return {"after": after} if after is not None and before == after else timelines


def _size(timelines: Timelines) -> tuple[float, float]:
    return 11, 3.4 * len(timelines)


def _drawing(timelines: Timelines) -> Callable[[Any], None]:
    colors = colors_of_modules(timelines)

    def fill(figure: Any) -> None:
        axes = figure.subplots(len(timelines), 1, sharex=False, sharey=True, squeeze=False)
        for axis, (title, timeline) in zip(axes.flat, timelines.items(), strict=True):
            _panel(axis, _TITLES.get(title, title), timeline, colors)
        figure.tight_layout()

    return fill


def _panel(axis: Any, title: str, timeline: dict[str, Any], colors: dict[str, str]) -> None:
    stacks = stacks_of(timeline, colors)
    peak, at = timeline["peak_bytes"], timeline["peak_step"]
    labels = []
    for name, stack in stacks.items():
        share = stack[at] / peak if peak else 0
        labels.append(f"{name}  {chart.bytes_text(stack[at])}, {share:.0%}")
    # A step's bytes are alive until the next one begins.
    steps = range(timeline["steps"] + 1)
    heights = [[value / chart.MIB for value in [*stack, stack[-1]]] for stack in stacks.values()]
    axis.stackplot(
        steps, *heights, colors=[colors[name] for name in stacks], labels=labels, step="post",
        linewidth=0,
    )  # fmt: skip
    ink = axis.xaxis.label.get_color()
    axis.axvline(timeline["forward_steps"], color=ink, linewidth=1, linestyle="--")
    axis.set_xlim(0, max(timeline["steps"], 1))
    axis.set_title(f"{title}: peak {chart.bytes_text(peak)} at step {at}", loc="left")
    axis.set_ylabel("MiB")
    axis.set_xlabel("step: forward, then backward behind the dashed line")
    handles, texts = axis.get_legend_handles_labels()
    axis.legend(  # in the order in which the colours lie on each other
        handles[::-1], texts[::-1], loc="upper left", bbox_to_anchor=(1.0, 1.05), title="at the peak",
        alignment="left",
    )  # fmt: skip


def colors_of_modules(timelines: Timelines) -> dict[str, str]:
    """A colour for each of the largest modules of all timelines, in the order in which they run.

    Then gradients, and the other modules together, in grey.
    """
    most: dict[str, int] = defaultdict(int)
    first: dict[str, int] = {}
    for timeline in timelines.values():
        total: dict[str, int] = defaultdict(int)
        for storage in timeline["storages"]:
            name = _group(storage)
            total[name] += storage["bytes"]
            first[name] = min(first.get(name, storage["first_step"]), storage["first_step"])
        for name, count in total.items():
            most[name] = max(most[name], count)
    modules = [name for name in most if name != _GRADIENTS]
    largest = sorted(modules, key=lambda name: -most[name])[:_MOST_MODULES]
    shown = sorted(largest, key=lambda name: first[name])
    if _GRADIENTS in most:
        shown.append(_GRADIENTS)
    colors = dict(zip(shown, chart.COLORS, strict=False))
    return {**colors, _OTHERS: chart.OTHERS}


def stacks_of(timeline: dict[str, Any], names: dict[str, str]) -> dict[str, list[int]]:
    """Live bytes at each step by module, of `names` in their order; the rest is summed as "others"."""
    stacks = {name: [0] * timeline["steps"] for name in names}
    for storage in timeline["storages"]:
        name = _group(storage)
        stack = stacks[name if name in stacks else _OTHERS]
        for step in range(storage["first_step"], storage["last_step"] + 1):
            stack[step] += storage["bytes"]
    return {name: stack for name, stack in stacks.items() if any(stack)}


def _group(storage: dict[str, Any]) -> str:
    if storage["kind"] == "gradient":
        return _GRADIENTS
    parts = storage["module"].split(".")
    numbered = next((i for i, part in enumerate(parts) if part.isdigit()), 0)
    return ".".join(parts[: numbered + 1]) or "(no module)"
