"""Runs seeds in subprocesses, so that a crash is one seed's and not the whole run's."""

from __future__ import annotations

import json
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BATCH = 100
SECONDS_PER_CASE = 120.0


def run_seeds(seeds: list[int], batch: int = BATCH) -> Iterator[dict[str, Any]]:
    """The outcome of each seed; a process that dies is started again behind the seed that killed it."""
    left = list(seeds)
    while left:
        done = 0
        for outcome in _run_batch(left[:batch]):
            done += 1
            yield outcome
        left = left[done:]


def _run_batch(seeds: list[int]) -> Iterator[dict[str, Any]]:
    """Outcomes until the process ends; the last one may be a crash."""
    command = [sys.executable, "-m", "tests.fuzz.run_case", *map(str, seeds)]
    root = Path(__file__).resolve().parents[2]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=root, text=True
    )
    started, case = seeds[0], ""
    finished = 0
    try:
        for line in _lines(process):
            message = json.loads(line)
            if "start" in message:
                started, case = message["start"], ""
            elif "status" not in message:
                case = message["case"]
            else:
                finished += 1
                yield message
    except TimeoutError:
        yield {"seed": started, "status": "timeout", "message": f"over {SECONDS_PER_CASE:.0f} s"}
        return
    finally:
        process.kill()
        _, errors = process.communicate()
    if finished < len(seeds):
        tail = errors.strip().splitlines()[-1:] or [""]
        text = f"exit status {process.returncode}, {tail[0]}"
        # Without a case it was eager PyTorch that crashed, when it tried what was generated.
        status = "crash" if case else "eager crash"
        yield {"seed": started, "status": status, "message": text, "case": case}


def _lines(process: subprocess.Popen[str]) -> Iterator[str]:
    """Lines of JSON; TimeoutError if none comes for too long."""
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        deadline = time.monotonic() + SECONDS_PER_CASE
        while True:
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise TimeoutError
            line = process.stdout.readline()
            if not line:
                return
            deadline = time.monotonic() + SECONDS_PER_CASE
            if line.startswith("{"):
                yield line
