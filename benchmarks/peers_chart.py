"""Draws peak against time, one panel per model.

``benchmarks.peers`` makes the numbers. The picture of the documents is drawn from their table:

    python -m benchmarks.peers_chart docs/memory_optimizer.md docs/peers.png
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import variants

Row = dict[str, Any]
Box = tuple[float, float, float, float]
"""Left, bottom, right and top in pixels."""

# Title of a family of variants, its colour and its marker.
_FAMILIES = {
    "eager": ("eager", "black", "*"),
    "checkpoint": ("checkpoint per block", "tab:red", "s"),
    "selective": ("selective checkpoint", "tab:orange", "D"),
    "compile": ("torch.compile, budgets", "tab:green", "^"),
    "levels": ("ours, levels 1 and 2", "tab:blue", "o"),
    "budgets": ("ours, budgets", "darkcyan", "."),
}
# A page shows the picture at about two thirds of its size; the texts are to be read there.
_LABEL_POINTS = 11
_TEXT_POINTS = 12
_TITLE_POINTS = 15
_PANEL_INCHES = (4.3, 3.9)
_TITLES = {
    "gpt": "GPT",
    "gpt_fused": "GPT, fused attention",
    "bert": "BERT",
    "t5": "T5",
    "vit": "ViT",
    "resnet": "ResNet",
    "mlp": "MLP",
}
# Distances of a label from its point that are tried, in points, and directions, the best first.
_DISTANCES = (6, 11, 17, 24, 32, 41, 51)
# At the height of its point a label is not taken for that of the next one.
_DIRECTIONS = ((1, 0), (1, 1), (1, -1), (-1, 0), (-1, 1), (-1, -1), (0, 1), (0, -1))

# How the table of the documents names the variants.
_NAMES = {
    "eager": "eager",
    "ours, the least budget": "ours_least",
    "ours, level 1": "ours1",
    "ours, level 2": "ours2",
    "`torch.utils.checkpoint` per block": "checkpoint",
    "selective checkpoint per block": "selective",
}


def _family(variant: str) -> str:
    if variants.is_ours(variant):
        return "budgets" if "_" in variant else "levels"
    return variant.partition("_")[0]


def _label(variant: str) -> str:
    if variant.startswith("ours_budget_"):
        return variant.removeprefix("ours_budget_") + " %"
    level = variant.removeprefix("ours")
    if level.isdigit():
        return f"level {level}"
    return variant.removeprefix("compile_budget_").removeprefix("ours_")


def _draw_model(axes: Any, model: str, rows: list[Row]) -> list[tuple[float, float, str, str]]:
    """Draws the points. Returns their labels: place, text and colour."""
    points: dict[str, list[Row]] = {}
    for row in rows:
        if "activation_peak_bytes" in row and "processor_ms" in row:
            points.setdefault(_family(row["variant"]), []).append(row)
    eager = points["eager"][0]
    labels: dict[tuple[float, float], tuple[list[str], str]] = {}
    for name, (title, colour, marker) in _FAMILIES.items():
        xs = [r["processor_ms"] / eager["processor_ms"] for r in points.get(name, [])]
        ys = [
            r["activation_peak_bytes"] / eager["activation_peak_bytes"]
            for r in points.get(name, [])
        ]
        if not xs:
            continue
        line = "-" if name == "budgets" else ":" if name == "compile" else "none"
        axes.plot(xs, ys, linestyle=line, linewidth=1, marker=marker, color=colour, label=title)
        if name in ("compile", "budgets", "levels"):
            for x, y, row in zip(xs, ys, points[name], strict=True):
                labels.setdefault((x, y), ([], colour))[0].append(_label(row["variant"]))
    axes.set_title(_TITLES.get(model, model), fontsize=_TITLE_POINTS)
    axes.tick_params(labelsize=_TEXT_POINTS)
    axes.locator_params(axis="x", nbins=6)
    axes.set_ylim(bottom=0)
    axes.margins(x=0.12, y=0.12)
    axes.grid(alpha=0.3)
    return [(x, y, ", ".join(texts), colour) for (x, y), (texts, colour) in labels.items()]


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _candidates(x: float, y: float, width: float, height: float, scale: float) -> Iterator[Box]:
    """Places of a label around a point, the nearest first."""
    for distance, (right, up) in itertools.product(_DISTANCES, _DIRECTIONS):
        left = (
            x + right * distance * scale - (0 if right > 0 else width if right < 0 else width / 2)
        )
        bottom = y + up * distance * scale - (0 if up > 0 else height if up < 0 else height / 2)
        yield left, bottom, left + width, bottom + height


def place_labels(
    points: list[tuple[float, float]],
    sizes: list[tuple[float, float]],
    inside: Box,
    scale: float,
    lines: Sequence[tuple[float, float]] = (),
) -> list[Box]:
    """A box for the label of each point, in pixels: beside all points, places on `lines`, all other boxes
    and within `inside`, as near as possible. `scale` is pixels per typographic point."""
    taken = [
        (x - radius, y - radius, x + radius, y + radius)
        for places, radius in ((points, 3 * scale), (lines, scale))
        for x, y in places
    ]
    boxes = []
    for (x, y), (width, height) in zip(points, sizes, strict=True):
        fits = (
            box
            for box in _candidates(x, y, width, height, scale)
            if inside[0] <= box[0] and box[2] <= inside[2]
            and inside[1] <= box[1] and box[3] <= inside[3]
            and not any(_overlap(box, other) for other in taken)
        )  # fmt: skip
        box = next(fits, None) or next(_candidates(x, y, width, height, scale))
        taken.append(box)
        boxes.append(box)
    return boxes


def _on_lines(axes: Any) -> Iterator[tuple[float, float]]:
    """All markers, and places on the drawn lines some pixels apart."""
    for line in axes.get_lines():
        places = axes.transData.transform(line.get_xydata())
        yield from map(tuple, places)
        if line.get_linestyle() == "None":
            continue
        for (x1, y1), (x2, y2) in itertools.pairwise(places):
            count = int(max(abs(x2 - x1), abs(y2 - y1)) / 4) + 1
            for i in range(1, count):
                yield x1 + (x2 - x1) * i / count, y1 + (y2 - y1) * i / count


def _write_labels(axes: Any, labels: list[tuple[float, float, str, str]], renderer: Any) -> None:
    """Beside their points, with a thin line to those that had to go further away."""
    scale = axes.figure.dpi / 72
    texts = [axes.text(0, 0, text, fontsize=_LABEL_POINTS, color=c) for _, _, text, c in labels]
    extents = [text.get_window_extent(renderer) for text in texts]
    points = [tuple(axes.transData.transform((x, y))) for x, y, _, _ in labels]
    frame = axes.get_window_extent(renderer)
    sizes = [(extent.width, extent.height) for extent in extents]
    inside = (frame.x0, frame.y0, frame.x1, frame.y1)
    boxes = place_labels(points, sizes, inside, scale, list(_on_lines(axes)))
    back = axes.transData.inverted()
    for text, point, box, (_, _, _, colour) in zip(texts, points, boxes, labels, strict=True):
        text.set_position(back.transform(((box[0] + box[2]) / 2, (box[1] + box[3]) / 2)))
        text.set_horizontalalignment("center")
        text.set_verticalalignment("center")
        nearest = (min(max(point[0], box[0]), box[2]), min(max(point[1], box[1]), box[3]))
        if max(abs(nearest[0] - point[0]), abs(nearest[1] - point[1])) > 12 * scale:
            (x1, y1), (x2, y2) = back.transform([point, nearest])
            axes.plot([x1, x2], [y1, y2], color=colour, linewidth=0.6, scalex=False, scaley=False)


def _legend(figure: Any, entries: Any, empty: list[Any], columns: int) -> None:
    """In the first place without a panel, else below all panels."""
    if empty:
        empty[0].legend(*entries, loc="center left", fontsize=_TITLE_POINTS, frameon=False)
    else:
        figure.legend(*entries, loc="lower center", ncols=2 * columns, fontsize=_TEXT_POINTS)


def chart(rows: list[Row]) -> Any:
    """The chart of all models as a figure; None if no model has a measured eager run."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    groups = [(m, list(group)) for m, group in itertools.groupby(rows, lambda r: r["model"])]
    groups = [
        (model, of_model)
        for model, of_model in groups
        if any(r["variant"] == "eager" and "activation_peak_bytes" in r for r in of_model)
    ]
    if not groups:
        return None
    columns = min(len(groups), 3)
    lines = -(-len(groups) // columns)
    width, height = _PANEL_INCHES
    figure = Figure(figsize=(width * columns, height * lines), dpi=100)
    canvas = FigureCanvasAgg(figure)
    grid = figure.subplots(lines, columns, squeeze=False)
    labels = [
        (axes, _draw_model(axes, model, of_model))
        for axes, (model, of_model) in zip(grid.flat, groups, strict=False)
    ]
    for axes in grid[:, 0]:
        axes.set_ylabel("activation peak, of eager's", fontsize=_TEXT_POINTS)
    for axes in list(grid.flat)[: len(groups)][-columns:]:
        axes.set_xlabel("processor time, of eager's", fontsize=_TEXT_POINTS)
    empty = list(grid.flat)[len(groups) :]
    for axes in empty:
        axes.axis("off")
    below = 0.0 if empty else 0.5 / (height * lines)
    figure.tight_layout(rect=(0, below, 1, 1))
    _legend(figure, grid.flat[0].get_legend_handles_labels(), empty, columns)
    for axes, of_axes in labels:
        _write_labels(axes, of_axes, canvas.get_renderer())
    return figure


def draw(rows: list[Row], path: Path) -> None:
    """Write the chart of all models as a PNG; models whose eager run failed are left out."""
    figure = chart(rows)
    if figure is not None:
        figure.savefig(path)


def rows_of_table(text: str) -> list[Row]:
    """The rows of the table "Beside the peers": ratios to eager instead of bytes and milliseconds."""
    table = text[text.index("| |gpt|") :].partition("\n\n")[0].splitlines()
    models = [cell.strip() for cell in table[0].strip("|").split("|")][1:]
    rows = []
    for line in table[2:]:
        title, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        variant = _NAMES.get(title)
        if variant is None:
            number = re.search(r"([\d.]+)(?: %)?$", title)
            assert number is not None, title
            kind = "compile_budget_" if "compile" in title else "ours_budget_"
            variant = kind + number[1]
        for model, cell in zip(models, cells, strict=True):
            found = re.fullmatch(r"([\d.]+) / ([\d.]+) / ([\d.]+)", cell)
            if found is not None:
                peak, _, time = map(float, found.groups())
                facts = {"activation_peak_bytes": peak, "processor_ms": time}
                rows.append({"model": model, "variant": variant, **facts})
    return sorted(rows, key=lambda row: models.index(row["model"]))


def main() -> None:
    """Draws the table of a page."""
    page, picture = map(Path, sys.argv[1:3])
    draw(rows_of_table(page.read_text()), picture)


if __name__ == "__main__":
    main()
