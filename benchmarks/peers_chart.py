"""Draws peak against time, one panel per model; ``benchmarks.peers`` makes the numbers."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from benchmarks import variants

Row = dict[str, Any]

# Title of a family of variants, its colour and its marker.
_FAMILIES = {
    "eager": ("eager", "black", "*"),
    "checkpoint": ("checkpoint per block", "tab:red", "s"),
    "selective": ("selective checkpoint", "tab:orange", "D"),
    "compile": ("torch.compile, budgets", "tab:green", "^"),
    "levels": ("ours, levels 1 and 2", "tab:blue", "o"),
    "budgets": ("ours, budgets", "tab:cyan", "."),
}


def _family(variant: str) -> str:
    if variants.is_ours(variant):
        return "budgets" if "_" in variant else "levels"
    return variant.partition("_")[0]


def _label(variant: str) -> str:
    return variant.removeprefix("compile_budget_").removeprefix("ours_budget_").replace("ours_", "")


def _draw_model(axes: Any, model: str, rows: list[Row]) -> None:
    points: dict[str, list[Row]] = {}
    for row in rows:
        if "activation_peak_bytes" in row and "processor_ms" in row:
            points.setdefault(_family(row["variant"]), []).append(row)
    eager = points["eager"][0]
    for name, (title, colour, marker) in _FAMILIES.items():
        xs = [r["processor_ms"] / eager["processor_ms"] for r in points.get(name, [])]
        ys = [
            r["activation_peak_bytes"] / eager["activation_peak_bytes"]
            for r in points.get(name, [])
        ]
        if not xs:
            continue
        line = "-" if name == "budgets" else ":" if name == "compile" else "none"
        axes.plot(xs, ys, linestyle=line, linewidth=0.9, marker=marker, color=colour, label=title)
        if name in ("compile", "budgets", "levels"):
            for x, y, row in zip(xs, ys, points[name], strict=True):
                place = {"xytext": (3, 3), "textcoords": "offset points", "fontsize": 6}
                axes.annotate(_label(row["variant"]), (x, y), color=colour, **place)
    axes.set_title(model, fontsize=10)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)


def draw(rows: list[Row], path: Path) -> None:
    """Write the chart of all models as a PNG; models whose eager run failed are left out."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    groups = [(m, list(group)) for m, group in itertools.groupby(rows, lambda r: r["model"])]
    groups = [
        (model, of_model)
        for model, of_model in groups
        if any(r["variant"] == "eager" and "activation_peak_bytes" in r for r in of_model)
    ]
    if not groups:
        return
    columns = min(len(groups), 3)
    lines = -(-len(groups) // columns)
    figure: Any
    grid: Any
    figure, grid = pyplot.subplots(
        lines, columns, figsize=(4.8 * columns, 4 * lines), squeeze=False
    )
    for axes, (model, of_model) in zip(grid.flat, groups, strict=False):
        _draw_model(axes, model, of_model)
    for axes in list(grid.flat)[len(groups) :]:
        axes.axis("off")
    for axes in grid[:, 0]:
        axes.set_ylabel("activation peak, of eager's")
    for axes in grid[-1]:
        axes.set_xlabel("processor time, of eager's")
    handles, labels = grid.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=2 * columns, fontsize=8)
    legend_inches = 0.2 + 0.2 * -(-len(labels) // (2 * columns))
    figure.tight_layout(rect=(0, legend_inches / (4 * lines), 1, 1))
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
