"""Errors for imports of names that `onnxruntime.training` had and this package does not."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType


class _Gone(MetaPathFinder):
    """The last finder, called if no other one knows the name."""

    def __init__(self, package: str) -> None:
        self._package = package

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        """Raises for a name in the package."""
        inside, _, last = name.rpartition(".")
        if not f"{inside}.".startswith(f"{self._package}.") or last.startswith("__"):
            return
        # `from package import name` would replace the message of a ModuleNotFoundError.
        raise ImportError(
            f"[{self._package}] an import must be of a name that was kept, but found {name}; "
            "docs/migrating.md says what became of it",
            name=name,
        )


def install(package: str) -> None:
    """Install the finder for `package`."""
    sys.meta_path.append(_Gone(package))
