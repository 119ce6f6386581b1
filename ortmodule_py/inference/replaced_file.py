"""Files that replace an existing one when they are complete."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replaced_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A path to write to, whose file replaces that at `path`, which an error leaves as it was."""
    target = Path(path)
    # Of this thread alone, and with the permissions of any new file, unlike those of tempfile.
    part = target.with_name(f"{target.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        yield part
        part.replace(target)
    except OSError as error:
        if error.filename is not None and os.fspath(error.filename) == str(part):
            error.filename = str(target)  # the name that the user knows
        raise
    finally:
        part.unlink(missing_ok=True)
