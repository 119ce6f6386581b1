"""What `python -m tools.gpu_check` has found to work, by GPU and build.

Code that no test without a GPU can run is off until a check on this GPU and this build has passed.
"""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import Any

import torch

from ortmodule_py import _C
from ortmodule_py.base.cache_files import cache_path, file_name, read_json, write_json


def note_check(feature: str, passed: bool) -> None:
    """Keeps whether the check of `feature` has passed, for the processes after this one."""
    write_json(_check_file(), {**_kept(), feature: passed})


@functools.cache
def is_checked(feature: str) -> bool:
    """Whether the last check of `feature` on this GPU and build has passed."""
    return torch.cuda.is_available() and _kept().get(feature) is True


@functools.cache
def build_hash() -> str:
    """Of the extension module, which holds the CUDA kernels."""
    return hashlib.sha256(Path(_C.__file__).read_bytes()).hexdigest()[:16]


def _kept() -> dict[str, Any]:
    kept = read_json(_check_file())
    return kept if isinstance(kept, dict) else {}


def _check_file() -> Path:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "emulated"
    return cache_path(f"checked-{build_hash()}-{file_name(f'{torch.__version__}-{device}')}.json")
