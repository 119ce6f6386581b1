"""Runs functions in processes that are the ranks of a gloo group, two if not said otherwise."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist

ROOT = Path(__file__).resolve().parents[2]
RANKS = 2
SECONDS = 60
"""After which a rank that waits for the other gives up."""


@contextmanager
def group(rank: int, folder: Path, count: int) -> Iterator[None]:
    """The group of all ranks; they meet in a file, so that no port can be taken."""
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'meeting'}",
        rank=rank,
        world_size=count,
        timeout=datetime.timedelta(seconds=SECONDS),
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


def run_in_ranks(module: str, names: list[str], count: int = RANKS) -> dict[str, str]:
    """Runs `module` in `count` processes for all `names`; gives the failures of all by name."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ORTMODULE_")}
    environment |= {
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "OMP_NUM_THREADS": "1",
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ranks = [
            subprocess.Popen(
                [sys.executable, "-W", "ignore", "-m", module, str(rank), str(count), name, *names],
                env=environment,
                cwd=ROOT,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(count)
        ]
        said = [rank.communicate(timeout=10 * SECONDS)[1] for rank in ranks]
        failures: dict[str, str] = {}
        for rank, text in enumerate(said):
            path = folder / f"{rank}.json"
            found = json.loads(path.read_text()) if path.exists() else dict.fromkeys(names, text)
            for scenario, failure in found.items():
                failures[scenario] = failures.get(scenario, "") + f"rank {rank}:\n{failure}\n"
        return failures


def main(scenarios: dict[str, Callable[[int], None]]) -> None:
    """What a rank does: every scenario that was asked for, each from the same random state."""
    rank, count, folder, names = (
        int(sys.argv[1]),
        int(sys.argv[2]),
        Path(sys.argv[3]),
        sys.argv[4:],
    )
    torch.set_num_threads(1)
    failures: dict[str, str] = {}
    with group(rank, folder, count):
        for name in names:
            torch.manual_seed(0)
            try:
                scenarios[name](rank)
            except Exception:
                failures[name] = traceback.format_exc()
            dist.barrier()
    (folder / f"{rank}.json").write_text(json.dumps(failures))
