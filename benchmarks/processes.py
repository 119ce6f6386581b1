"""Starts worker processes and talks to them, with a time limit for every answer."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks import variants

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"

_NO_GRAPH_CACHES = {"TORCHINDUCTOR_FX_GRAPH_CACHE": "0", "TORCHINDUCTOR_AUTOGRAD_CACHE": "0"}


class WorkerError(RuntimeError):
    """The worker failed, died or took too long; the text says which."""


def default_core() -> int:
    """The core that single-threaded workers are pinned to."""
    return max(os.sched_getaffinity(0))


class WorkerProcess:
    """One variant of one model in a process of its own.

    Compiler caches are cold, unless ``kernel_cache`` names a folder that processes may share: it
    keeps compiled kernels, which spares compiling equal ones again, but never graphs.
    """

    def __init__(
        self, config: dict[str, Any], *, timeout_s: float, kernel_cache: str | None = None
    ) -> None:
        self.variant: str = config["variant"]
        self.timeout_s = timeout_s
        self._shared = kernel_cache is not None
        self._cache = kernel_cache or tempfile.mkdtemp(prefix="bench-cache-")
        log = RESULTS / "logs" / f"{config['model']}-{self.variant}-{config['threads']}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log = log.with_name(log.name.replace(":", "-").replace("=", "-")).open("w")
        self._buffer = b""
        self._hopeless = False
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.worker", json.dumps(config)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=self._environment(config["threads"]),
            start_new_session=True,
        )

    def _environment(self, threads: int) -> dict[str, str]:
        path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        return (
            dict(os.environ)
            | {
                "PYTHONPATH": os.pathsep.join(path),
                "OMP_NUM_THREADS": str(threads),
                "OMP_WAIT_POLICY": "PASSIVE",
                "GOMP_SPINCOUNT": "0",
                "TORCHINDUCTOR_CACHE_DIR": self._cache,
            }
            | (_NO_GRAPH_CACHES if self._shared else {})
            | variants.environment(self.variant)
        )

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Send a command and wait for its answer; raise ``WorkerError`` if there is none."""
        assert self._process.stdin is not None
        line = json.dumps({"command": command} | arguments) + "\n"
        try:
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()
        except OSError:
            raise WorkerError(self._death()) from None
        answer: dict[str, Any] = json.loads(self._read_line(command))
        if "error" in answer:
            raise WorkerError(f"{command}: {answer['error']}")
        return answer

    def _read_line(self, command: str) -> bytes:
        assert self._process.stdout is not None
        deadline = time.monotonic() + self.timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    self._hopeless = True
                    raise WorkerError(f"{command}: no answer in {self.timeout_s:.0f} s")
                chunk = os.read(self._process.stdout.fileno(), 1 << 16)
                if not chunk:
                    raise WorkerError(f"{command}: {self._death()}")
                self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _death(self) -> str:
        code = self._process.wait(timeout=10)
        if code >= 0:
            return f"the process ended with status {code}"
        return f"the process was killed by {signal.Signals(-code).name}"

    def close(self) -> None:
        """End the process and everything it has started."""
        if self._log.closed:
            return
        if self._process.stdin is not None:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                self._process.stdin.close()
                self._process.wait(timeout=0 if self._hopeless else 10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()
        if not self._shared:
            shutil.rmtree(self._cache, ignore_errors=True)

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
