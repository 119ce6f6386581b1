"""Reading of environment variables."""

from __future__ import annotations

import os
from collections.abc import Sequence


def choice(name: str, values: Sequence[str], rule: str, remedy: str = "") -> str:
    """The value of a variable, without regard to case; the first of `values` if it is unset or empty.

    Raises:
        ValueError: any other value.
    """
    text = os.environ.get(name, "").strip()
    for value in values:
        if text.lower() in ("", value.lower()):
            return value
    raise ValueError(f"[{name}] {rule}, but found {text!r}{remedy}")


def flag(name: str) -> bool:
    """Whether a variable is 1, rather than 0 or unset."""
    return choice(name, ("0", "1"), "the value must be 0 or 1") == "1"


def rank() -> int:
    """The process's place in a distributed run, as launchers set it; 0 without one, or if the variable
    RANK is somebody else's.
    """
    text = os.environ.get("RANK", "").strip()
    return int(text) if text.isdecimal() else 0
