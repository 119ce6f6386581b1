"""Runs parts in processes of their own, and keeps what they found.

A process that hangs or crashes costs the row that it was at: it is killed with all that it started,
the row says so, and a fresh process does the rest of the part. Rows are written as they come, so the
next run goes on where this one stopped. Nothing here needs torch or touches a GPU.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .part import Row

MOST_TRIES = 2
"""A row during which its process ended runs once more: something else may have ended it."""
_LEAST_SECONDS = 5.0
"""With less time left than this no process is started."""


@dataclass(frozen=True)
class Entry:
    """A part as the driver sees it."""

    name: str
    rows: tuple[str, ...]
    limit_s: float
    command: tuple[str, ...]
    """Starts a worker. It reads requests from its input, one JSON object a line: `row` and what is
    `known` of the part. For each it writes an event, `row` and `facts`, to the file descriptor whose
    number follows the command; `last` says that it ends then."""
    row_s: float = 1.0
    """About what a row takes, to share out processes."""
    alone: bool = False
    """Nothing may run beside it."""


@dataclass
class Results:
    """All rows so far, in a file."""

    path: Path
    machine: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, dict[str, Row]] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path, machine: dict[str, Any]) -> Results:
        """The results in the file, if they are of this machine and build; otherwise none."""
        if path.exists():
            try:
                known = json.loads(path.read_text())
            except json.JSONDecodeError:
                known = {}
            if known.get("machine") == machine:
                return cls(path, machine, known.get("parts", {}))
            print(f"{path} holds another machine's or build's results and is replaced")
        return cls(path, machine)

    def save(self) -> None:
        """Writes the file, whole or not at all; its folder is made."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_suffix(".new")
        fresh.write_text(json.dumps({"machine": self.machine, "parts": self.parts}, indent=1))
        fresh.replace(self.path)


def todo(rows: Sequence[str], known: dict[str, Row]) -> list[str]:
    """The rows that are left: first those that never ran, then what failed, last what ended its
    process and has a try left."""

    def turn(name: str) -> int | None:
        row = known.get(name)
        if row is None:
            return 0
        if "tries" in row:
            return None if row["tries"] >= MOST_TRIES else 2
        return None if row["ok"] else 1

    turns = {name: turn(name) for name in rows}
    return sorted((n for n in rows if turns[n] is not None), key=lambda name: turns[name] or 0)


class Worker:
    """A process that does rows of a part."""

    def __init__(self, command: Sequence[str], log: Path, threads: int | None = None) -> None:
        self.log = log
        self.read, write = os.pipe()
        self._buffer = b""
        several = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [*command, str(write)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(write,),
                env=os.environ | several,
                start_new_session=True,  # so that it is killed with all that it started
            )
        os.close(write)

    def ask(self, request: dict[str, Any]) -> None:
        """Sends a request. Where the process has ended, its status says so later."""
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()

    def ask_no_more(self) -> None:
        """Lets the process end."""
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def events(self) -> list[dict[str, Any]] | None:
        """Waits for the next events; None when the process has closed its side."""
        chunk = os.read(self.read, 1 << 16)
        if not chunk:
            return None
        *lines, self._buffer = (self._buffer + chunk).split(b"\n")
        return [json.loads(line) for line in lines]

    def end(self, wait_s: float) -> int:
        """The exit status; killed, with its children, if it does not end by itself."""
        self.ask_no_more()
        try:
            status = self._process.wait(wait_s)
        except subprocess.TimeoutExpired:
            status = -signal.SIGKILL
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self.read)
        return status

    def last_line(self) -> str:
        """What it wrote last."""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1][:200] if lines else ""


def _ended(row: Row | None, why: str, seconds: float) -> Row:
    tries = (row or {}).get("tries", 0) + 1
    return {"ok": False, "why": why, "tries": tries, "seconds": round(seconds, 1)}


@dataclass
class _Part:
    """A part under way."""

    entry: Entry
    known: dict[str, Row]
    left: list[str]
    """Rows that no process has been asked for."""
    latest: float
    """When the run ends."""
    processes: int = 0
    started: int = 0
    deadline: float | None = None

    def may_start(self) -> bool:
        """Whether a process is of use."""
        least = min(_LEAST_SECONDS, self.entry.limit_s / 2)
        end = self.latest if self.deadline is None else self.deadline
        return bool(self.left) and end - time.monotonic() >= least

    def need_s(self) -> float:
        """The time that is left to each of its processes if it had one more."""
        return len(self.left) * self.entry.row_s / (self.processes + 1)

    def start(self) -> float:
        """The time of a part begins with its first process. Returns its end."""
        if self.deadline is None:
            self.deadline = min(time.monotonic() + self.entry.limit_s, self.latest)
        self.processes += 1
        self.started += 1
        return self.deadline


class _Process:
    """A process of a part, and the row that it is at."""

    def __init__(self, part: _Part, folder: Path, threads: int | None) -> None:
        self.part = part
        self.deadline = part.start()
        folder.mkdir(parents=True, exist_ok=True)
        number = f".{part.started}" if part.started > 1 else ""
        log = folder / f"{part.entry.name.replace(' ', '_').replace('/', '_')}{number}.log"
        self.worker = Worker(part.entry.command, log, threads)
        self.at: str | None = None
        self.since = time.monotonic()
        self._ask()

    def _ask(self) -> None:
        self.at, self.since = self.part.left.pop(0), time.monotonic()
        self.worker.ask({"row": self.at, "known": self.part.known})

    def go_on(self, last: bool) -> None:
        """After a row: the next one. None begins that may not end, going by the longest so far."""
        self.at = None
        longest = max(row["seconds"] for row in self.part.known.values())
        if self.part.left and self.deadline - time.monotonic() < longest:
            self.part.left.clear()  # of this run
        if self.part.left and not last:
            self._ask()
        else:
            self.worker.ask_no_more()


class Run:
    """One run over the parts."""

    def __init__(
        self, results: Results, seconds: float, show: Callable[[str, str, Row], None]
    ) -> None:
        self.results = results
        self.deadline = time.monotonic() + seconds
        self._show = show

    def all(self, entries: Sequence[Entry], jobs: int = 1) -> None:
        """Does what is left of the parts: one after the other, or in so many processes, and then
        those that must be alone."""
        beside = [entry for entry in entries if not entry.alone] if jobs > 1 else []
        self._together(beside, jobs)
        for entry in entries:
            if entry not in beside:
                self._together([entry], 1)

    def _together(self, entries: Sequence[Entry], jobs: int) -> None:
        """As far as the time of each part and that of the run go."""
        threads = max((os.cpu_count() or 1) // jobs, 1) if jobs > 1 else None
        parts = []
        for entry in entries:
            known = self.results.parts.get(entry.name, {})
            parts.append(_Part(entry, known, todo(entry.rows, known), self.deadline))
        running: list[_Process] = []
        try:
            while True:
                while len(running) < jobs and (open_ := [p for p in parts if p.may_start()]):
                    part = max(open_, key=_Part.need_s)
                    running.append(_Process(part, self.results.path.with_suffix(""), threads))
                if not running:
                    return
                for process, late in self._ready(running):
                    if not self._read(process, late):
                        running.remove(process)
                        process.part.processes -= 1
        finally:
            for process in running:
                process.worker.end(0.0)

    def _ready(self, running: Sequence[_Process]) -> list[tuple[_Process, bool]]:
        """Those that have something to say, and those whose time is over (True)."""
        with selectors.DefaultSelector() as waiting:
            for process in running:
                waiting.register(process.worker.read, selectors.EVENT_READ, process)
            first = min(process.deadline for process in running)
            ready = [key.data for key, _ in waiting.select(max(first - time.monotonic(), 0))]
        now = time.monotonic()
        late = [p for p in running if p not in ready and now >= p.deadline]
        return [(process, False) for process in ready] + [(process, True) for process in late]

    def _read(self, process: _Process, late: bool) -> bool:
        """Takes what the process says. False if it has ended."""
        known = process.part.known
        events = None if late else process.worker.events()
        for event in events or []:
            self._note(process, event["row"], event["facts"])
            process.go_on(event.get("last", False))
        if events is not None:
            return True
        status = process.worker.end(0.0 if late else 10.0)
        spent = time.monotonic() - process.since
        at = process.at
        if late:
            process.part.left.clear()
            if at and process.deadline < self.deadline:
                self._note(process, at, _ended(known.get(at), "it did not end in time", spent))
        elif at:
            how = f"signal {-status}" if status < 0 else f"status {status}"
            why = f"the process ended with {how}: {process.worker.last_line()}"
            self._note(process, at, _ended(known.get(at), why, spent))
        return False

    def _note(self, process: _Process, name: str, row: Row) -> None:
        part = process.part.entry.name
        process.part.known[name] = row
        self.results.parts[part] = process.part.known
        self.results.save()
        self._show(part, name, row)
