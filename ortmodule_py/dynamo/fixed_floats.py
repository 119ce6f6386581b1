"""Calls that specialize a float, so that each value of it is a capture."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable

_CAPTURED_VALUES = 3
"""Captured values of a float before the graph breaks at the call."""

Call = tuple[str, str]
"""Name of the function and source line of the call."""


class FixedFloats:
    """The calls of one module that specialize a float, and their captured values."""

    def __init__(self) -> None:
        self._calls: set[Call] = set()
        self._values: defaultdict[Call, set[Hashable]] = defaultdict(set)

    def add(self, call: Call) -> None:
        """The call specialized a float."""
        self._calls.add(call)

    def is_exhausted(self, call: Call, value: Hashable) -> bool:
        """Whether three other values were captured, not counting the first: it was not known to change."""
        self._values[call].add(value)
        return call in self._calls and len(self._values[call]) >= _CAPTURED_VALUES
