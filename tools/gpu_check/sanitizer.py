"""Part `sanitizer`: a few ops under compute-sanitizer, where the CUDA toolkit with it is installed."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from .part import Context, Part, Row

_ROOT = Path(__file__).resolve().parents[2]
_OPS = ("softmax", "layer_norm", "gather", "pool", "trilu", "cumsum")
_TOOLS = ("memcheck", "racecheck")
_WRONG = 97
"""Exit status if the tool has found errors."""
_PROGRAM = """
import sys, torch
from tools.gpu_check.operators import run_file
from tools.gpu_check.part import Context
row = run_file(sys.argv[1], Context(torch.device("cuda:0"), False))
sys.exit(0 if row["ok"] else 1)
"""


def _run(name: str, context: Context) -> Row:
    path = shutil.which("compute-sanitizer") or shutil.which(
        "/usr/local/cuda/bin/compute-sanitizer"
    )
    if path is None:
        return {"skipped": "compute-sanitizer is not installed", "ok": True, "why": ""}
    tool, _, stem = name.partition(" ")
    # Only our kernels: those of libraries take their time and are not ours to check.
    options = [
        "--tool",
        tool,
        "--error-exitcode",
        str(_WRONG),
        "--kernel-name-exclude",
        "regex=at::",
    ]
    found = subprocess.run(
        [path, *options, sys.executable, "-c", _PROGRAM, stem],
        cwd=_ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    errors = re.findall(r"========= (?!COMPUTE-SANITIZER)(\S.*)", found.stdout)
    why = "" if found.returncode == 0 else f"status {found.returncode}: {'; '.join(errors[:3])}"
    return {"ok": not why, "why": why[:300]}


SANITIZER = Part(
    "sanitizer",
    "compute-sanitizer on a few ops, if it is installed",
    lambda: [f"{tool} {stem}" for tool in _TOOLS for stem in _OPS],
    _run,
    limit_s=300,
)
