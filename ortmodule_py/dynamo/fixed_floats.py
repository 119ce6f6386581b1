"""Calls that take a float that changes as a constant, so that each value of it is a capture."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable

_CAPTURED_VALUES = 3
"""How many values of a float are captured before the graph breaks at the call."""

Call = tuple[str, str]
"""The name of a function, and the line of the call."""


class FixedFloats:
    """Such calls of one module, and the values with which they were captured."""

    def __init__(self) -> None:
        self._calls: set[Call] = set()
        self._values: defaultdict[Call, set[Hashable]] = defaultdict(set)

    def add(self, call: Call) -> None:
        """The call took a float as a constant."""
        self._calls.add(call)

    def is_exhausted(self, call: Call, value: Hashable) -> bool:
        """Whether three other values were captured: the first, when it was not known to change, is not counted."""
        self._values[call].add(value)
        return call in self._calls and len(self._values[call]) >= _CAPTURED_VALUES
