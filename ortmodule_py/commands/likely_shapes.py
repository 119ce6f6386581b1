"""Shapes that are assumed where a model leaves sizes open (as `inference/likely_sizes` does in C++)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ortmodule_py.inference.model_facts import NodeArg

# For the first size of an input, which often is a batch, and for the others.
_LIKELY = [(2, 64), (2, 96), (2, 32), (2, 16), (2, 224), (2, 8), (2, 4), (2, 2), (1, 64), (1, 1)]


def likely_shapes(inputs: Sequence[NodeArg]) -> Iterator[list[list[int]]]:
    """Sizes for all inputs: fixed ones as they are, others assumed, equal where names are."""
    open_sizes = any(not isinstance(size, int) for each in inputs for size in each.shape)
    for apart in (True, False) if open_sizes else (False,):
        for first, other in _LIKELY if open_sizes else _LIKELY[:1]:
            yield _shapes(inputs, first, other, apart)


def _shapes(inputs: Sequence[NodeArg], first: int, other: int, apart: bool) -> list[list[int]]:
    """`apart`: sizes with different names differ, so that the graph does not assume them equal."""
    known: dict[str, int] = {}
    shapes = []
    for each in inputs:
        shape = []
        for axis, size in enumerate(each.shape):
            if isinstance(size, int):
                shape.append(size)
                continue
            name = size if isinstance(size, str) else f"{each.name}.{axis}"
            if name not in known:
                if axis == 0:
                    known[name] = first
                else:
                    known[name] = other + (other // 2 * len(known) if apart else 0)
            shape.append(known[name])
        shapes.append(shape)
    return shapes
