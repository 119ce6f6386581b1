"""The process that does rows of a part: `python -m tools.gpu_check.worker PART EVENTS`, where EVENTS
is the number of a file descriptor; see driver.py. With `machine` for PART it says where it is."""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import time
from collections.abc import Iterable
from typing import Any

import torch

import ortmodule_py
from ortmodule_py.base.gpu_checks import build_hash

from .part import Context, Part, Row
from .parts import PARTS

LOST = 3
"""Exit status where an error has broken the GPU for this process."""


def machine() -> dict[str, Any]:
    """What results belong to: a device and a build."""
    info = ortmodule_py.build_info()
    name = "none"
    if torch.cuda.is_available():
        name = torch.cuda.get_device_name()
    elif info["cuda_emulation"]:
        name = "host, emulated"
    return {
        "device": name,
        "torch": torch.__version__,
        "version": info["version"],
        "module": build_hash(),
        "targets": info["cuda"].get("targets", []),
    }


def make_row(part: Part, name: str, context: Context) -> Row:
    """The row, with an exception as the reason why it is wrong."""
    torch._dynamo.reset()  # captures of the row before
    start = time.monotonic()
    try:
        row = part.run(name, context)
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        row = {"ok": False, "why": f"{type(error).__name__}: {lines[0][:200]}"}
    return row | {"seconds": round(time.monotonic() - start, 1)}


def work(part: Part, context: Context, requests: Iterable[str], send: Any) -> int:
    """Does the row of each request and sends what came of it; see `Entry.command`."""
    for line in requests:
        request = json.loads(line)
        name, context.known = request["row"], request["known"]
        row = make_row(part, name, context)
        lost = context.lost()
        if lost:
            why = f"{row['why']}; the GPU was lost to the process".lstrip("; ")
            row |= {"ok": False, "why": why}
        send({"row": name, "facts": row, "last": lost})
        if lost:
            return LOST
    return 0


def main() -> int:
    """Runs a worker."""
    name, events = sys.argv[1], int(sys.argv[2])
    faulthandler.enable()
    with os.fdopen(events, "w", buffering=1) as out:

        def send(event: dict[str, Any]) -> None:
            out.write(json.dumps(event) + "\n")

        if name == "machine":
            send({"row": name, "facts": {"ok": True, "why": "", "seconds": 0.0} | machine()})
            return 0
        emulated = not torch.cuda.is_available()
        context = Context(torch.device("cpu" if emulated else "cuda:0"), emulated)
        part = next(part for part in PARTS if part.name == name)
        return work(part, context, sys.stdin, send)


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # a broken GPU may hang in destructors
