"""Saves and restores the state of a module, around a run without side effects."""

from __future__ import annotations

import random
import types
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

Restore = Callable[[], Any]

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
        elif isinstance(value, (list, deque, set, tuple)):
            if not isinstance(value, tuple):
                found.append(_elements_of(value))
            left += [(item, with_fields) for item in value]
        elif isinstance(value, random.Random):
            found.append(partial(value.setstate, value.getstate()))
        elif isinstance(value, torch.Generator):
            found.append(partial(value.set_state, value.get_state()))
        elif with_fields and not isinstance(value, _NOT_FIELDS):
            fields = getattr(value, "__dict__", None)
            if not isinstance(fields, dict):
                continue
            found.append(_items_of(fields))
            left += [(item, False) for item in fields.values()]
    return found


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


class ModuleState:
    """A snapshot of a module: tensors, gradients, attributes and their contents.

    Without `parameters` it has no copy of the parameters' values.
    """

    def __init__(self, module: nn.Module, *, parameters: bool = True) -> None:
        attributes = [m.__dict__ for m in module.modules()]
        values = [value for held in attributes for value in held.values()]
        self._restores = [*map(_items_of, attributes), *restores(values)]
        plain = [value for value in values if isinstance(value, Tensor)]
        kept = list(module.parameters()) if parameters else []
        tensors = {id(t): t for t in [*kept, *module.buffers(), *plain]}
        self._tensors = [(t, t._version, t.detach().clone()) for t in tensors.values()]
        self._gradients = [(p, p.grad) for p in module.parameters()]
        # Restoring must not count as a mutation for autograd: a backward may still be pending.
        self._versions = torch.autograd._unsafe_preserve_version_counter(tuple(tensors.values()))

    def restore(self) -> None:
        """Restore everything that has changed."""
        for restore in self._restores:
            restore()
        with self._versions, torch.no_grad():
            for tensor, version, content in self._tensors:
                if tensor._version != version or not torch.equal(tensor, content):
                    tensor.copy_(content)
        for parameter, gradient in self._gradients:
            if parameter.grad is not gradient:
                parameter.grad = gradient
