"""Saves and restores the values of attributes other than tensors, around a run without side effects."""

from __future__ import annotations

import random
import types
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

Restore = Callable[[], None]

_NOT_FIELDS = (Tensor, nn.Module, type, types.ModuleType, types.FunctionType, types.MethodType)
_MOST_VALUES = 100_000


def restores(attributes: Iterable[Any]) -> list[Restore]:
    """Functions that restore the current contents of `attributes`.

    These are the items of containers at any depth, the fields of objects, and the states of random
    generators. Objects inside of objects are not followed, as a trainer or a logger would lead to the
    whole process.
    """
    found: list[Restore] = []
    left = [(value, True) for value in attributes]
    seen = set[int]()
    while left and len(seen) < _MOST_VALUES:
        value, with_fields = left.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, dict):
            found.append(_items_of(value))
            left += [(item, with_fields) for item in value.values()]
        elif isinstance(value, (list, deque, set)):
            found.append(_elements_of(value))
            left += [(item, with_fields) for item in value]
        elif isinstance(value, tuple):
            left += [(item, with_fields) for item in value]
        elif isinstance(value, random.Random):
            found.append(_call(value.setstate, value.getstate()))
        elif isinstance(value, torch.Generator):
            found.append(_call(value.set_state, value.get_state()))
        elif with_fields and not isinstance(value, _NOT_FIELDS):
            fields = getattr(value, "__dict__", None)
            if not isinstance(fields, dict):
                continue
            found.append(_items_of(fields))
            left += [(item, False) for item in fields.values()]
    return found


def _call(setter: Callable[[Any], Any], state: Any) -> Restore:
    return lambda: setter(state)


def _items_of(container: dict[Any, Any]) -> Restore:
    before = dict(container)

    def restore() -> None:
        same = list(container) == list(before)
        if not same or any(container[key] is not before[key] for key in before):
            container.clear()
            container.update(before)

    return restore


def _elements_of(container: list[Any] | deque[Any] | set[Any]) -> Restore:
    before = list(container)

    def restore() -> None:
        if list(map(id, container)) != list(map(id, before)):
            container.clear()
            put = container.update if isinstance(container, set) else container.extend
            put(before)

    return restore
