"""What holds for all tests."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# Memory plans are chosen by built-in rates, not by those of the machine.
os.environ.setdefault("ORTMODULE_MACHINE_RATES", "estimate")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--sample",
        type=int,
        metavar="N",
        help="run at most N tests of each file, spread evenly over its functions",
    )


@pytest.hookimpl(trylast=True)  # of what the marks leave
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    most = config.getoption("--sample")
    if most is None:
        return
    functions: dict[Path, dict[str, pytest.Item]] = {}
    for item in items:
        functions.setdefault(item.path, {}).setdefault(item.nodeid.partition("[")[0], item)
    kept = set()
    for firsts in map(list, map(dict.values, functions.values())):
        count = min(most, len(firsts))
        kept.update(firsts[i * len(firsts) // count] for i in range(count))
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


@pytest.fixture(scope="module", autouse=True)
def _old_objects_are_not_traversed() -> Iterator[None]:
    """Captures leave over a million objects in caches; collections took an eighth of all time."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _banners_are_news() -> None:
    """A banner comes once for a class of modules in a process; tests share classes."""
    announcement = sys.modules.get("ortmodule_py.report.announcement")
    if announcement is not None:
        announcement._announced.clear()
