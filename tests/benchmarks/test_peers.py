"""Which points of the peers the benchmark reports as lying below our curve."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import peers_chart
from benchmarks.peers import PEAK, TIME, parse_arguments, points_below, print_below


def row(variant: str, peak: int, time: float) -> dict[str, Any]:
    return {"model": "m", "variant": variant, "error": None, PEAK: peak, TIME: time}


OURS = [row("ours1", 40, 9.0), row("ours_budget_60", 60, 7.0), row("ours_least", 30, 12.0)]


def below(*peers: dict[str, Any]) -> dict[str, list[str]]:
    return {
        peer["variant"]: [ours["variant"] for ours in beaten]
        for peer, beaten in points_below([*OURS, *peers])
    }


def test_points_that_ours_equal_or_beat_are_not_below() -> None:
    assert below(row("eager", 100, 8.0), row("checkpoint", 40, 9.0)) == {}


def test_points_between_ours_are_below_and_name_what_they_beat() -> None:
    assert below(row("selective", 50, 8.0)) == {"selective": []}
    assert below(row("selective", 35, 8.0)) == {"selective": ["ours1"]}
    everything = [ours["variant"] for ours in OURS]
    assert below(row("compile_budget_0.5", 20, 5.0)) == {"compile_budget_0.5": everything}


def test_rows_without_figures_do_not_count() -> None:
    failed = {"model": "m", "variant": "checkpoint", "error": "no", TIME: 0.0}
    assert below(failed) == {}


def test_a_comparison_without_one_side_has_no_verdict() -> None:
    console = Console(record=True)
    assert print_below("m", [*OURS], console) == 0
    assert print_below("m", [row("eager", 100, 8.0)], console) == 0
    assert "below our curve" not in console.export_text()


def test_every_variant_of_the_command_line_exists() -> None:
    every = parse_arguments([]).variants
    assert {"ours1", "ours_budget_20", "selective", "compile_budget_0.1"} <= set(every)
    quick = parse_arguments(["--quick", "--skip-compile"]).variants
    assert set(quick) < set(every)
    assert not any(variant.startswith("compile") for variant in quick)


def _boxes_of_labels(page: str) -> tuple[list[peers_chart.Box], int]:
    """The labels of the chart of a page's table, in pixels, and how many there must be."""
    rows = peers_chart.rows_of_table(page)
    figure = peers_chart.chart(rows)
    renderer = figure.canvas.get_renderer()
    texts = [text for axes in figure.axes for text in axes.texts]
    extents = [text.get_window_extent(renderer) for text in texts]
    labelled = {
        (row["model"], row["activation_peak_bytes"], row["processor_ms"])
        for row in rows
        if row["variant"].startswith(("ours", "compile"))
    }
    return [(e.x0, e.y0, e.x1, e.y1) for e in extents], len(labelled)


def test_labels_of_the_chart_of_the_documents_do_not_lie_on_each_other() -> None:
    page = (Path(__file__).parents[2] / "docs" / "memory_optimizer.md").read_text()
    boxes, count = _boxes_of_labels(page)
    assert len(boxes) == count > 60
    for one, other in itertools.combinations(boxes, 2):
        inner = (one[0] + 1, one[1] + 1, one[2] - 1, one[3] - 1)
        assert not peers_chart._overlap(inner, other)


def test_labels_of_points_at_one_place_find_room() -> None:
    boxes = peers_chart.place_labels([(50, 50)] * 6, [(20, 8)] * 6, (0, 0, 100, 100), 1)
    assert not any(peers_chart._overlap(a, b) for a, b in itertools.combinations(boxes, 2))
