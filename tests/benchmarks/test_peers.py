"""Which points of the peers the benchmark reports as lying below our curve."""

from __future__ import annotations

from typing import Any

from rich.console import Console

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
