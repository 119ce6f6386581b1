"""What holds for all tests."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator

import pytest

# Memory plans are chosen by built-in rates, not by those of the machine.
os.environ.setdefault("ORTMODULE_MACHINE_RATES", "estimate")


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
