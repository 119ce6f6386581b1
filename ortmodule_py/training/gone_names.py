"""Imports of what `onnxruntime.training` had and is not here: the error says where to read on."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType


class _Gone(MetaPathFinder):
    """Comes last, where no finder knew the name."""

    def __init__(self, package: str) -> None:
        self._package = package

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        """Raise for a name inside of the package."""
        inside, _, last = name.rpartition(".")
        if not f"{inside}.".startswith(f"{self._package}.") or last.startswith("__"):
            return
        # No ModuleNotFoundError, which `from package import name` replaces by a message of its own.
        raise ImportError(
            f"[{self._package}] an import must be of a name that was kept, but found {name}; "
            "docs/migrating.md says what became of it",
            name=name,
        )


def install(package: str) -> None:
    """Answer for `package` from now on."""
    sys.meta_path.append(_Gone(package))
