"""The torch version that the extension was built for, which is checked before it is loaded.

Under another minor version of torch, loading would fail with an undefined symbol.
"""

from __future__ import annotations

import json
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

BUILD_COMMAND = "python -m pip install --no-build-isolation --no-deps ."


def built_for() -> dict[str, str]:
    """Returns {"torch": version, "cuda": version or ""} of the build."""
    suffix = EXTENSION_SUFFIXES[0].removesuffix(".so")
    note = Path(__file__).with_name(f"_C{suffix}.json")
    if not note.exists():
        raise ImportError(
            f"ortmodule_py has no extension for this Python ({note.stem} is missing). "
            f"Build it in the source tree: {BUILD_COMMAND}"
        )
    facts: dict[str, str] = json.loads(note.read_text())
    return facts


def check_torch(running: str) -> None:
    """Raises ImportError if the extension was built for another torch than `running` (torch.__version__)."""
    built = built_for()["torch"]
    if built.split(".")[:2] != running.split(".")[:2]:
        raise ImportError(
            f"ortmodule_py was built for torch {built}, but this is torch {running}. "
            f"Rebuild it in the source tree: {BUILD_COMMAND}"
        )
