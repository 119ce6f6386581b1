"""Runs parts one after the other, each in a process of its own, and keeps what they found.

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
    """Starts a worker. It reads a request (`Request`) from its input and writes events, one JSON
    object a line, to the file descriptor whose number follows the command."""


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

    def __init__(self, entry: Entry, request: dict[str, Any], log: Path) -> None:
        self.log = log
        read, write = os.pipe()
        self._read = read
        self._buffer = b""
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [*entry.command, str(write)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(write,),
                start_new_session=True,  # so that it is killed with all that it started
            )
        os.close(write)
        assert self._process.stdin
        try:
            self._process.stdin.write(json.dumps(request).encode())
            self._process.stdin.close()
        except BrokenPipeError:
            pass  # it ended at once, and its status says so

    def events(self, deadline: float) -> Any:
        """The next events, an empty list if there are none before the deadline (of
        `time.monotonic`), or None when the process has closed its side."""
        with selectors.DefaultSelector() as waiting:
            waiting.register(self._read, selectors.EVENT_READ)
            if not waiting.select(max(deadline - time.monotonic(), 0)):
                return []
        chunk = os.read(self._read, 1 << 16)
        if not chunk:
            return None
        *lines, self._buffer = (self._buffer + chunk).split(b"\n")
        return [json.loads(line) for line in lines]

    def end(self, wait_s: float) -> int:
        """The exit status; killed, with its children, if it does not end by itself."""
        try:
            status = self._process.wait(wait_s)
        except subprocess.TimeoutExpired:
            status = -signal.SIGKILL
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._read)
        return status

    def last_line(self) -> str:
        """What it wrote last."""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1][:200] if lines else ""


def _ended(row: Row | None, why: str, seconds: float) -> Row:
    tries = (row or {}).get("tries", 0) + 1
    return {"ok": False, "why": why, "tries": tries, "seconds": round(seconds, 1)}


class Run:
    """One run over the parts."""

    def __init__(
        self, results: Results, seconds: float, show: Callable[[str, str, Row], None]
    ) -> None:
        self.results = results
        self.deadline = time.monotonic() + seconds
        self._show = show

    def part(self, entry: Entry) -> None:
        """Does what is left of a part, as far as its time and that of the run go."""
        known = self.results.parts.setdefault(entry.name, {})
        deadline = min(time.monotonic() + entry.limit_s, self.deadline)
        left = todo(entry.rows, known)
        while left and deadline - time.monotonic() >= min(_LEAST_SECONDS, entry.limit_s / 2):
            before = len(left)
            if not self._process(entry, left, deadline):
                return
            left = [name for name in left if name in self._undone]
            if len(left) == before:
                return  # it did nothing: there is no time for the next row
        if not known:
            del self.results.parts[entry.name]

    def _process(self, entry: Entry, rows: list[str], deadline: float) -> bool:
        """One process over these rows. False if the time of the part is over."""
        known = self.results.parts[entry.name]
        self._undone = list(rows)
        request = {"rows": rows, "known": known, "seconds": deadline - time.monotonic()}
        log = self.results.path.with_suffix("") / f"{entry.name.replace(' ', '_')}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        worker = Worker(entry, request, log)
        at, start, late = None, time.monotonic(), False
        try:
            while (events := worker.events(deadline)) is not None:
                late = not events and time.monotonic() >= deadline
                if late:
                    break
                for event in events:
                    at, start = self._take(entry, event), time.monotonic()
            status = worker.end(0.0 if late else 10.0)
        except BaseException:
            worker.end(0.0)
            raise
        spent = time.monotonic() - start
        if late:
            if at and deadline < self.deadline:
                self._note(entry.name, at, _ended(known.get(at), "it did not end in time", spent))
            return False
        if at or status != 0:
            at = at or self._undone[0]
            how = f"signal {-status}" if status < 0 else f"status {status}"
            why = f"the process ended with {how}: {worker.last_line()}"
            self._note(entry.name, at, _ended(known.get(at), why, spent))
        return True

    def _take(self, entry: Entry, event: dict[str, Any]) -> str | None:
        """Notes an event; returns the row that is under way after it."""
        if "begins" in event:
            return str(event["begins"])
        self._note(entry.name, event["row"], event["facts"])
        return None

    def _note(self, part: str, name: str, row: Row) -> None:
        if name in self._undone:
            self._undone.remove(name)
        self.results.parts[part][name] = row
        self.results.save()
        self._show(part, name, row)
