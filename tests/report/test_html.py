"""Reports in notebooks, and the pictures in them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ortmodule_py import ORTModule, check, explain
from ortmodule_py.inference import chart
from ortmodule_py.inference.explanation import InferenceExplanation
from ortmodule_py.inference.memory import MemoryReport
from ortmodule_py.report import picture
from tests.semantics import QUIET


def storage(
    module: str, bytes_: int, first: int, last: int, kind: str = "forward"
) -> dict[str, Any]:
    return {"module": module, "bytes": bytes_, "first_step": first, "last_step": last, "kind": kind}


def timeline(storages: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "storages": storages, "steps": 6, "forward_steps": 3, "peak_step": 2, "peak_bytes": 100,
    }  # fmt: skip


BEFORE = timeline([storage("b", 10, 0, 5), storage("a.0.c", 70, 1, 4), storage("", 5, 2, 2)])
AFTER = timeline(
    [storage("b", 10, 0, 5), storage("a.0.c", 40, 1, 2), storage("", 9, 4, 5, "gradient")]
)


def test_a_module_has_one_colour_in_both_panels_and_its_place_by_when_it_runs() -> None:
    colors = picture.colors_of_modules({"before": BEFORE, "after": AFTER})
    assert list(colors) == ["b", "a.0", "(no module)", "gradients", "others"]
    assert len(set(colors.values())) == len(colors)
    assert picture.stacks_of(AFTER, colors)["a.0"] == [0, 40, 40, 0, 0, 0]


def test_small_modules_are_summed() -> None:
    many = timeline([storage(f"m{i:02}", 100 - i, i % 6, 5) for i in range(12)])
    colors = picture.colors_of_modules({"before": many})
    assert len(colors) == 9 and "m11" not in colors
    stacks = picture.stacks_of(many, colors)
    assert sum(stack[5] for stack in stacks.values()) == sum(100 - i for i in range(12))


def test_the_legend_has_bytes_and_share_and_the_text_the_colour_of_the_page() -> None:
    from matplotlib.figure import Figure

    figure = Figure()
    picture._drawing({"before": BEFORE, "after": AFTER})(figure)
    texts = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert "a.0  70 bytes, 70%" in texts and texts[-1].startswith("b  10 bytes")
    element = picture.svg({"before": BEFORE, "after": AFTER})
    assert element.startswith("<svg ") and element.count("currentColor") > 10
    assert "max-width:11.0in" in element and not re.search(r'<svg [^>]*\bwidth="', element)
    assert chart._TEXT_OF_PAGE not in element


def test_equal_panels_are_drawn_once() -> None:
    once = picture.svg({"before": BEFORE, "after": dict(BEFORE)})
    twice = picture.svg({"before": BEFORE, "after": AFTER})
    assert [element.count("<!-- step: forward") for element in (once, twice)] == [1, 2]
    assert "as planned: peak" in once and "without the memory optimizer" not in once


@pytest.mark.parametrize("dark", [False, True])
def test_a_file_has_a_background(dark: bool, tmp_path: Path) -> None:
    picture.draw({"before": BEFORE}, tmp_path / "a.svg", dark)
    text = (tmp_path / "a.svg").read_text()
    assert (chart._PAPER[dark] in text) and chart._PAPER[not dark] not in text


def test_reports_of_training_as_html() -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)), torch.ones(4, 8)
    html = explain(ORTModule(model, QUIET), x)._repr_html_()
    assert "Predicted peak of a step" in html and "; nothing is recomputed<" in html
    assert html.count("<!-- step: forward") == 1 and html.count("<details>") == 2
    html = check(model, x)._repr_html_()
    assert "as in eager PyTorch" in html and "<svg" not in html and "worst gradient of 4" in html


def test_reports_of_sessions_as_html() -> None:
    memory = MemoryReport(1000, 96, 20, 12345, 13345, True)
    assert "12,345" in memory._repr_html_()
    tensor = {
        "op": "Relu", "node": "<act>", "name": "h", "offset_bytes": 0, **storage("", 96, 0, 1),
    }  # fmt: skip
    facts = {"block_bytes": 96, "live_bytes": [96] * 6, **timeline([tensor])}
    html = InferenceExplanation.of(memory, facts)._repr_html_()
    assert "<svg" in html and "&lt;act&gt;" not in html.partition("<svg")[0]
    assert "<act>" not in html.partition("</svg>")[2]
