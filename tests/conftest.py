"""What holds for all tests."""

from __future__ import annotations

import gc
import operator
import os
import random
import sys
import zlib
from collections.abc import Callable, Iterator
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
    parser.addoption(
        "--slow-share",
        metavar="K/N",
        help="of the slow tests run the part K of N; all parts together are all slow tests",
    )


@pytest.hookimpl(trylast=True)  # of what the marks leave
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    most, share = config.getoption("--sample"), config.getoption("--slow-share")
    if share is not None:
        part, parts = map(int, share.split("/"))
        _keep(config, items, lambda item: _part_of(item, parts) in (None, part))
    if most is not None:
        _keep_sample(config, items, most)


def _keep(
    config: pytest.Config, items: list[pytest.Item], keeps: Callable[[pytest.Item], bool]
) -> None:
    kept = [item for item in items if keeps(item)]
    config.hook.pytest_deselected(items=[item for item in items if not keeps(item)])
    items[:] = kept


def _part_of(item: pytest.Item, parts: int) -> int | None:
    """The part of a slow test, which other tests do not change."""
    if item.get_closest_marker("slow") is None:
        return None
    return zlib.crc32(item.nodeid.encode()) % parts


def _keep_sample(config: pytest.Config, items: list[pytest.Item], most: int) -> None:
    functions: dict[Path, dict[str, pytest.Item]] = {}
    for item in items:
        functions.setdefault(item.path, {}).setdefault(item.nodeid.partition("[")[0], item)
    kept = set()
    for firsts in map(list, map(dict.values, functions.values())):
        count = min(most, len(firsts))
        kept.update(firsts[i * len(firsts) // count] for i in range(count))
    _keep(config, items, kept.__contains__)


@pytest.fixture(scope="module", autouse=True)
def _old_objects_are_not_traversed() -> Iterator[None]:
    """Captures leave over a million objects in caches; collections took an eighth of all time."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _random_numbers_repeat(request: pytest.FixtureRequest) -> None:
    """A test that fails by its random weights fails again, in each run; the fuzzer tries new ones."""
    seed = zlib.crc32(request.node.nodeid.encode())
    random.seed(seed)
    for module, function in (("numpy", "random.seed"), ("torch", "manual_seed")):
        if module in sys.modules:
            operator.attrgetter(function)(sys.modules[module])(seed)


@pytest.fixture(autouse=True)
def _banners_are_news() -> None:
    """A banner comes once for a class of modules in a process; tests share classes."""
    announcement = sys.modules.get("ortmodule_py.report.announcement")
    if announcement is not None:
        announcement._announced.clear()
