"""Tensors in the arguments and results of a module."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

_MOST_OBJECTS = 10_000
"""How many objects are searched for tensors."""


def tensors(value: Any, objects: bool = False) -> Iterator[Tensor]:
    """Tensors in dicts, lists and tuples, with `objects` also in the attributes of other objects.

    Containers may contain themselves, which `torch.utils._pytree` does not allow.
    """
    left, seen = [value], set[int]()
    while left:
        item = left.pop()
        if isinstance(item, Tensor):
            yield item
            continue
        if objects or isinstance(item, (dict, list, tuple)):
            if id(item) in seen or (objects and len(seen) == _MOST_OBJECTS):
                continue
            seen.add(id(item))
        if isinstance(item, dict):
            left.extend(item.values())
        elif isinstance(item, (list, tuple)):
            left.extend(item)
        elif objects and not isinstance(item, (type, types.ModuleType, nn.Module)):
            left.append(getattr(item, "__dict__", None))
