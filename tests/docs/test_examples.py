"""The examples of accumulation, of the search for a batch size, of pruning and of distillation do
what they say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from examples.find_batch_size import largest

ROOT = Path(__file__).parents[2]


def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """An example in a process of its own, with no setting of the memory optimizer."""
    environment = {k: v for k, v in os.environ.items() if "ORTMODULE_MEMORY" not in k}
    return subprocess.run(
        [sys.executable, str(ROOT / "examples" / name), *arguments],
        env=environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 11, 63, 64, 65])
def test_the_search_finds_the_largest_size(limit: int) -> None:
    tried: list[int] = []

    def fits(size: int) -> bool:
        tried.append(size)
        return size <= limit

    assert largest(fits) == (limit if limit >= 2 else 0)
    assert len(tried) == len(set(tried)), "no size is tried twice"


@pytest.mark.slow
def test_accumulated_gradients_are_those_of_the_whole_batch() -> None:
    done = run("gradient_accumulation.py", "--batch", "16", "--epochs", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "accumulated" in done.stdout and "captures 1" in done.stdout


@pytest.mark.slow
def test_a_larger_batch_than_eagers_is_found_and_trains() -> None:
    done = run("find_batch_size.py")
    assert done.returncode == 0, done.stdout + done.stderr
    sizes = re.search(r"largest batch: eager (\d+), ortmodule_py (\d+)", done.stdout)
    assert sizes and int(sizes[2]) >= 2 * int(sizes[1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("prune.py", ["--epochs", "8", "--tuning-epochs", "4"], "half of the channels: "),
        ("distill.py", ["--seeds", "2"], "with the teacher"),
    ],
)
def test_smaller_models_answer_as_well(name: str, arguments: list[str], said: str) -> None:
    done = run(name, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    assert said in done.stdout and "quantized" in done.stdout
