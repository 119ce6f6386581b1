"""Arguments that alias an argument which is changed in place.

The graph of a piece assumes that its arguments do not alias. Dynamo guards on the same tensor passed
twice, but does not see two views of one storage.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

Span = tuple[int, int, bool]
"""Address of the first byte, end address, whether it is changed."""


class OverlapGuard:
    """Returns for each call whether a changed argument may overlap another one.

    Checking all parameters in each call would take as long as Dynamo's guards, so the spans of
    arguments with `fixed` sizes are cached until an address changes.
    """

    def __init__(self, mutated: Sequence[int], fixed: Sequence[bool]) -> None:
        self._mutated = frozenset(mutated)
        self._fixed = [i for i, is_fixed in enumerate(fixed) if is_fixed]
        self._others = [i for i, is_fixed in enumerate(fixed) if not is_fixed]
        self._addresses: list[int] = []
        self._spans: list[Span] = []

    def __call__(self, arguments: Sequence[Any]) -> bool:
        addresses = [arguments[i].data_ptr() for i in self._fixed]
        if addresses != self._addresses:
            self._spans = self._spans_of(arguments, self._fixed)
            self._addresses = addresses
        return _overlap(self._spans + self._spans_of(arguments, self._others))

    def _spans_of(self, arguments: Sequence[Any], positions: Sequence[int]) -> list[Span]:
        return sorted(
            (start, start + _bytes(value), i in self._mutated)
            for i in positions
            if isinstance(value := arguments[i], Tensor) and (start := value.data_ptr())
        )


def _overlap(spans: list[Span]) -> bool:
    spans.sort()
    end_of_all = end_of_mutated = 0
    for start, end, is_mutated in spans:
        if start < (end_of_all if is_mutated else end_of_mutated):
            return True
        if end > end_of_all:
            end_of_all = end
        if is_mutated and end > end_of_mutated:
            end_of_mutated = end
    return False


def _bytes(tensor: Tensor) -> int:
    """Bytes from the first element to the end of the last."""
    if tensor.is_contiguous() or tensor.numel() == 0:
        return tensor.nbytes
    steps = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return (steps + 1) * tensor.element_size()
