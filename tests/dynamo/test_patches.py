"""The table of what captures depend on in torch: each row holds, each replacement is needed, and with a row
turned off results are eager's."""

from __future__ import annotations

import inspect
import runpy
from collections.abc import Iterator

import pytest
import torch

import ortmodule_py
from ortmodule_py import ORTModule, last_run_report
from ortmodule_py.dynamo.patches import table
from ortmodule_py.dynamo.patches.probes import Trial
from tests.semantics import QUIET


@pytest.fixture
def trial() -> Iterator[Trial]:
    """Runs probes, as at the import under a torch that is newer than all tested ones."""
    torch._dynamo.reset()
    yield Trial(lambda module: ORTModule(module, QUIET), last_run_report)
    torch._dynamo.reset()


@pytest.fixture
def row(request: pytest.FixtureRequest) -> Iterator[table.Row]:
    """A row of the table, which holds again at the end."""
    found = table.rows[request.param]
    if found.state != table.HOLDS:
        pytest.skip(found.state)
    yield found
    found.state, found.off = table.HOLDS, False
    if isinstance(found, table.Patch) and not found.traced:
        found.put()


def probe(row: table.Row, trial: Trial) -> bool:
    """The result of a probe with code of its own: code that was left to eager PyTorch once stays so."""
    known = dict(table.rows)
    runpy.run_path(inspect.getfile(row.probe))
    fresh = table.rows[row.name].probe
    table.rows.update(known)
    return fresh(trial)


every_row = pytest.mark.parametrize("row", table.rows, indirect=True)
PATCHES = [name for name, row in table.rows.items() if isinstance(row, table.Patch)]
NEEDED = [name for name, row in table.rows.items() if row.needed_by is not None]


def test_every_row_holds_in_this_torch() -> None:
    states = ortmodule_py.build_info()["dynamo_patches"]
    assert set(states) == set(table.rows)
    old = {name for name, state in states.items() if state.startswith("not for torch before")}
    assert {states[name] for name in set(states) - old} == {table.HOLDS}
    assert not old or table.running_torch() < (2, 13)


@every_row
def test_the_probe_of_a_row_that_holds(row: table.Row, trial: Trial) -> None:
    assert probe(row, trial)


@pytest.mark.parametrize("row", PATCHES, indirect=True)
def test_the_probe_notices_that_the_replacement_is_not_there(
    row: table.Patch, trial: Trial
) -> None:
    row.turn_off("for a test")
    row.off = False  # nothing is kept from being captured
    assert not probe(row, trial)


@pytest.mark.parametrize("row", [name for name in NEEDED if name != "collectives"], indirect=True)
def test_what_needs_a_row_that_is_off_runs_in_eager(row: table.Row, trial: Trial) -> None:
    row.turn_off("for a test")
    assert probe(row, trial)
    assert any(row.name in reason for reason in trial.eager_pieces)
