"""The table of what captures depend on in torch: each row holds, each replacement is needed, and with a row
turned off results are eager's."""

from __future__ import annotations

import functools
import importlib
import json
import random
import tempfile
from pathlib import Path
from typing import Any

import pytest

import ortmodule_py
from ortmodule_py.dynamo.patches import table
from tests import fresh_process

# In a process of its own, after a capture of another backend, as Dynamo keeps some of its functions in tables
# from its first capture on.
_RUN_PROBES = """
import collections, json
import torch
from ortmodule_py import DebugOptions, LogLevel, ORTModule, last_run_report
from ortmodule_py.dynamo.patches import table
from ortmodule_py.dynamo.patches.probes import Trial

torch.compile(lambda x, seen: x * len(seen), backend="eager")(torch.ones(2), collections.deque([1.0]))

found = {}
for mode in ("holds", "missing", "off"):
    torch._dynamo.reset()
    found[mode] = {}
    for name, row in table.rows.items():
        if row.state != table.HOLDS:
            continue
        if mode == "missing" and not isinstance(row, table.Patch):
            continue
        if mode == "off" and row.needed_by is None:
            continue
        if mode != "holds":
            row.turn_off("for a test")
            row.off = mode == "off"
        trial = Trial(lambda module: ORTModule(module, DebugOptions(LogLevel.ERROR)), last_run_report)
        found[mode][name] = row.probe(trial), trial.eager_pieces
        row.state, row.off = table.HOLDS, False
        if isinstance(row, table.Patch) and not row.traced:
            row.put()
print(json.dumps(found))
"""


@functools.cache
def probed() -> Any:
    """Results of all probes, and what was reported to run in eager PyTorch, by what was done to the rows."""
    with tempfile.TemporaryDirectory() as cache:
        done = fresh_process.run(_RUN_PROBES, ORTMODULE_CACHE_DIR=cache)
        files = [file.name for file in Path(cache).iterdir()]
    assert done.returncode == 0, done.stderr
    return {**json.loads(done.stdout.splitlines()[-1]), "files": files}


PATCHES = [name for name, row in table.rows.items() if isinstance(row, table.Patch)]
NEEDED = [name for name, row in table.rows.items() if row.needed_by is not None]
OLD = table.running_torch() < (2, 13)


def test_every_row_holds_in_this_torch() -> None:
    states = ortmodule_py.build_info()["dynamo_patches"]
    assert set(states) == set(table.rows)
    others = {state for state in states.values() if state != table.HOLDS}
    newer = {version for version in ((2, 13), (2, 14)) if version > table.running_torch()}
    assert others <= {f"not for torch before {major}.{minor}" for major, minor in newer}


def test_the_probes_of_rows_that_hold() -> None:
    """Replacements count after other captures, too."""
    assert {name for name, (works, _) in probed()["holds"].items() if not works} == set()


@pytest.mark.parametrize("name", PATCHES)
def test_a_probe_notices_that_the_replacement_is_missing(name: str) -> None:
    # Before 2.13 Dynamo traces functions of torch.nn.utils, which `packed_layers` replaces as well, and
    # rounds no numbers of random. From 2.14 on it captures random.random and sdp_kernel itself.
    needless = OLD and name in ("packed_sequences", "precision of random numbers")
    new = table.running_torch() >= (2, 14)
    captured = ("random.random", "attributes of numbers of numpy", "attention_backends")
    needless |= new and name in captured
    if name in probed()["missing"] and not needless:
        assert not probed()["missing"][name][0]


@pytest.mark.parametrize("name", [name for name in NEEDED if name != "collectives"])
def test_what_needs_a_row_that_is_off_runs_in_eager(name: str) -> None:
    if name in probed()["off"]:
        works, eager_pieces = probed()["off"][name]
        assert works and any(repr(name) in piece for piece in eager_pieces)


# ---- a torch that is newer than all tested ones --------------------------------------------------

# The first replaced function is gone, the second takes other arguments, the third does something else.
_IN_A_NEWER_TORCH = """
import json, random, sys, types
import torch
from torch._dynamo.variables import builder, misc, tensor

torch.__version__ = "2.99.0"
misc.RandomVariable = None
wrap = builder.VariableBuilder._wrap
builder.VariableBuilder._wrap = lambda self, item: wrap(self, item)
tensor.SymNodeVariable.create = classmethod(lambda cls, tx, *args, **kwargs: cls(*args, **kwargs))
import ortmodule_py._build_info
ortmodule_py._build_info.check_torch = lambda *running: None
from tests.semantics import QUIET

generator = random.Random(3)

class Draws(torch.nn.Module):
    def forward(self, x):
        return x * generator.random()

model = ortmodule_py.ORTModule(Draws(), QUIET)
drawn = [float(model(torch.ones(()))) for _ in range(3)]
print(json.dumps([ortmodule_py.build_info()["dynamo_patches"], drawn]))
"""


def _import_newer(cache: Path) -> tuple[dict[str, str], list[float], str]:
    """States of the rows, three drawn numbers, and what was logged."""
    done = fresh_process.run(_IN_A_NEWER_TORCH, ORTMODULE_CACHE_DIR=str(cache))
    assert done.returncode == 0, done.stderr
    states, drawn = json.loads(done.stdout.splitlines()[-1])
    return states, drawn, done.stderr


def _is_taken(row: table.Patch) -> bool:
    """Whether `_IN_A_NEWER_TORCH` changes what the row replaces there, or this torch does not have it yet."""
    module, _, attributes = row.paths[max(row.paths)].partition(":")
    found: Any = importlib.import_module(module)
    for attribute in attributes.split("."):
        found = getattr(found, attribute, None)
    return found is None or attributes in (
        "RandomVariable.call_method",
        "VariableBuilder._wrap",
        "SymNodeVariable.create",
    )


@pytest.mark.slow
def test_rows_that_do_not_hold_in_a_newer_torch_are_turned_off(tmp_path: Path) -> None:
    generator = random.Random(3)
    eager = [generator.random() for _ in range(3)]
    states, drawn, log = _import_newer(tmp_path)
    assert drawn == pytest.approx(eager)
    broken = {name: state for name, state in states.items() if state != table.HOLDS}
    taken = {
        name for name, row in table.rows.items() if isinstance(row, table.Patch) and _is_taken(row)
    }
    assert set(broken) >= taken > {"deques", "random", "rounded sizes"}
    # Others do not hold where their probes need what the test takes away.
    assert all("probe" in broken[name] for name in set(broken) - taken)
    assert len(broken) < len(states) / 2
    assert "has no torch._dynamo.variables.misc:RandomVariable.call_method" in broken["random"]
    assert "takes (self, item), not (self, value, ...)" in broken["deques"]
    assert "probe" in broken["bools"]
    assert log.count("is newer than all tested ones") == len(broken)
    for name in broken:
        assert f"{name!r} of build_info() does not hold" in log

    # The next process reads what this one found.
    (file,) = tmp_path.glob("dynamo-patches-*.json")
    file.write_text(json.dumps({**states, "floats": "said the file"}))
    again, drawn, _ = _import_newer(tmp_path)
    assert again == {**states, "floats": "said the file"}
    assert drawn == pytest.approx(eager)


def test_no_probe_runs_in_a_tested_torch() -> None:
    """Their results would be in a file."""
    assert not any(name.startswith("dynamo-patches-") for name in probed()["files"])
