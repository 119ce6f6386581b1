"""Feeds in files, as the command line takes them."""

from __future__ import annotations

import os
import zipfile
from typing import Any

import numpy as np


def read_feeds(path: str | os.PathLike[str], argument: str) -> dict[str, Any]:
    """The arrays of a file of numpy.savez, by name. `argument` names it in a ValueError."""
    rule = f"{argument} must be a file of numpy.savez, but found"
    if not os.path.isfile(path):
        raise ValueError(f"{rule} none at {path}")
    if not zipfile.is_zipfile(path):  # numpy would take it for a pickle
        raise ValueError(f"{rule} another one at {path}; write it by numpy.savez(path, x=array)")
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (zipfile.BadZipFile, EOFError, ValueError) as error:
        raise ValueError(f"{rule} a damaged one, or one with objects, at {path}: {error}") from None
