"""Small files that are kept between processes, in `ORTMODULE_CACHE_DIR` or the user's cache folder."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from ortmodule_py.inference.replaced_file import replaced_file

FOLDER = "ORTMODULE_CACHE_DIR"


def cache_path(name: str) -> Path:
    """Where the file of this name is kept; a place without files for a user without a home."""
    if given := os.environ.get(FOLDER):
        return Path(given) / name
    try:
        return Path.home() / ".cache" / "ortmodule_py" / name
    except RuntimeError:  # as in containers that run under any user id
        return Path(os.devnull) / name


def file_name(text: str) -> str:
    """`text` as part of a file name."""
    return "".join(c if c.isalnum() else "-" for c in text)[:60]


def read_json(path: Path) -> Any:
    """What the file holds; None if it is missing or damaged."""
    with contextlib.suppress(OSError, ValueError):
        return json.loads(path.read_text())
    return None


def write_json(path: Path, value: Any) -> None:
    """Replace the file at once; one that cannot be written is made anew by the next process."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replaced_file(path) as part:
            part.write_text(json.dumps(value))
