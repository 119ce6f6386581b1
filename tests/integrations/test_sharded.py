"""FSDP2, tensor parallelism and pipelines around ORTModules, on ranks with gloo."""

from __future__ import annotations

import pytest
import torch.distributed as dist

from ortmodule_py.base.sharding import Unit, beside_runs

from .ranks import run_in_ranks

with_gloo = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="torch was built without gloo"
)
_MODULE = "tests.integrations.sharded"


@with_gloo
@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
def test_ranks(count: int) -> None:
    """All scenarios in one set of processes; the failures are told apart by name."""
    from . import sharded

    names = list(sharded.SCENARIOS if count == 2 else sharded.FOUR_RANKS)
    failures = run_in_ranks(_MODULE, names, count)
    assert not failures, "\n".join(f"{name}, {text}" for name, text in failures.items())


def _unit(name: str, ids: list[int], *, stays: bool = False) -> Unit:
    gathered = 100 * len(ids)
    return Unit(
        name, {}, dict.fromkeys(ids, 100), gathered, gathered * stays, gathered, 50 * len(ids), 2
    )


def test_what_fsdp_holds_around_each_run() -> None:
    """Backward of a unit: itself, the root, the one gathered ahead and the one reduced before."""
    units = [_unit("", [1, 2], stays=True), _unit("a", [3]), _unit("b", [4])]
    runs = [frozenset([1]), frozenset([3]), frozenset([4]), frozenset([2])]
    for unit in units:
        unit.shards.update(dict.fromkeys(unit.gradients))
    found = beside_runs(units, runs, [100] * 4, [{}] * 4)
    assert [f.units for f in found] == [("",), ("a",), ("b",), ("",)]
    # The root's gradients are reduced behind its first run, and both are whole until then.
    assert [f.gradient_bytes for f in found] == [0, 50, 50, 100]
    assert [f.around_bytes for f in found] == [200 + 100, 200 + 100 + 100, 200 + 100 + 100, 300]
    assert [f.behind_bytes for f in found] == [100 + 200, 200 + 100 + 100, 200 + 200 + 100, 0]
    assert beside_runs([], runs, [100] * 4, [{}] * 4) == []


def test_gradients_that_are_passed_on_are_freed_behind_their_reader() -> None:
    """The third run reads a result of the first one, and the fourth those of the second and third."""
    units = [_unit("a", [3])]
    passed: list[dict[int, int]] = [{}, {}, {0: 10}, {1: 20, 2: 30}]
    found = beside_runs(units, [frozenset()] * 4, [100] * 4, passed)
    assert [f.gradient_bytes for f in found] == [100, 100, 90, 50]
    assert [f.passing_bytes for f in found] == [10, 10 + 20, 20 + 30, 0]
