"""Scripts in a process of their own: what is said once per process is said there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def environment(**variables: str) -> dict[str, str]:
    """This process's environment without ORTMODULE variables, and with `variables`."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("ORTMODULE_")}
    return {**kept, "PYTHONPATH": str(ROOT), **variables}


def run(script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The finished process."""
    return subprocess.run(
        [sys.executable, "-c", script],
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=300,
    )
