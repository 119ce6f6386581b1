"""Scripts in a process of their own that need not import torch again.

A fresh process with torch takes seconds until it runs anything. Here one process imports it, does
nothing else, and every script gets a fork of it. Not for scripts that ask how a process starts, and
not for variables that are read when libraries are loaded, such as OMP_NUM_THREADS.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.fresh_process import ROOT, environment


@functools.cache
def _parent() -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.forked_process"],
        env=environment(), cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    atexit.register(process.kill)
    return process


def run(
    *arguments: str, cwd: Path = ROOT, variables: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """The finished `python arguments`: a script, `-c` and code, or `-m` and a module."""
    parent = _parent()
    assert parent.stdin is not None and parent.stdout is not None
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder, name) for name in ("stdout", "stderr")]
        asked = {
            "arguments": arguments,
            "cwd": str(cwd),
            "environment": environment(**(variables or {})),
            "outputs": list(map(str, outputs)),
        }
        parent.stdin.write(json.dumps(asked) + "\n")
        parent.stdin.flush()
        status = int(parent.stdout.readline())
        return subprocess.CompletedProcess(arguments, status, *(o.read_text() for o in outputs))


def _run(arguments: Sequence[str]) -> None:
    kind, *rest = arguments
    if kind == "-c":
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), sys.modules["__main__"].__dict__)
    elif kind == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(arguments)
        sys.path.insert(0, str(Path(kind).resolve().parent))
        runpy.run_path(kind, run_name="__main__")


def _child(asked: dict[str, Any]) -> int:
    """What `python` would do and give as its exit status."""
    for descriptor, path in enumerate(asked["outputs"], 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), descriptor)
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["cwd"])
    try:
        _run(asked["arguments"])
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        print(ended.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def main() -> None:
    """Answers each line of standard input by the exit status of what it asks for."""
    import numpy  # noqa: F401
    import onnx  # noqa: F401
    import torch._dynamo  # noqa: F401

    import ortmodule_py  # noqa: F401

    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            sys.exit(_child(json.loads(line)))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
