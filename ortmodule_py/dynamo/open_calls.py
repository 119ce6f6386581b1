"""Calls of a layer to an object that the capture has made before it, as `cache.update(keys, values, 3)` of a decoder.

Such a call reads and changes Python objects, so it is not copied with its layer (`equal_layers`): Dynamo traces it for
each layer, with the arguments of that layer. An argument may be a number of the layer that nothing but the call reads,
as the place of a layer in its cache. All else that a layer reads of such an object must be the same for each layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch._guards import Source

_VARIABLES: Any = torch._dynamo.variables
_KINDS: Any = torch._dynamo.variables.base


@dataclass(eq=False)
class OpenCall:
    """A traced call of a method."""

    method: Any
    """Dynamo's variable of the bound method."""
    args: list[Any]
    """Nodes for tensors, sources for what the call alone reads, else Dynamo's variables."""
    kwargs: dict[str, Any]
    before: fx.Node | None
    """The last node of the graph before it."""
    variables: dict[fx.Node, Any] = field(default_factory=dict)
    """Dynamo's variables of the tensors that were given."""
    calls: list[fx.Node] = field(default_factory=list)
    """Its calls."""
    result: Any = None
    """Nodes, constants, and tuples of them."""
    returned: dict[fx.Node, None] = field(default_factory=dict)
    """The nodes of the result."""

    def given(self) -> Iterator[Any]:
        """The parts of the arguments."""
        for value in (*self.args, *self.kwargs.values()):
            yield from _parts(value)


@dataclass(eq=False)
class Read:
    """An attribute that a layer has read of an object."""

    variable: Any
    name: str
    value: Any
    """Dynamo's variable; None where the object has no such attribute of its own."""
    behind: int
    """How many open calls of the layer came before."""

    def holds(self, side_effects: Any) -> bool:
        """Whether the object has the same now."""
        if not side_effects.has_pending_mutation_of_attr(self.variable, self.name):
            return self.value is None
        found = side_effects.load_attr(self.variable, self.name, deleted_ok=True)
        return found is self.value or is_same_constant(found, self.value)

    def is_fixed(self) -> bool:
        """Whether the value cannot change by itself."""
        fixed = (
            _VARIABLES.ConstantVariable,
            _VARIABLES.TensorVariable,
            _VARIABLES.UserDefinedObjectVariable,
        )
        return self.value is None or type(self.value) in fixed


def is_made_object(variable: Any) -> bool:
    """Whether it is a plain Python object that the capture has made."""
    made = isinstance(variable.mutation_type, _KINDS.AttributeMutationNew)
    return made and type(variable) is _VARIABLES.UserDefinedObjectVariable


def is_same_constant(a: Any, b: Any) -> bool:
    """Whether both are one Python constant."""
    if type(a) is not _VARIABLES.ConstantVariable or type(b) is not type(a):
        return False
    left, right = a.as_python_constant(), b.as_python_constant()
    return type(left) is type(right) and repr(left) == repr(right)


def is_unread(variable: Any) -> bool:
    """Whether it is a value of the model that the trace has not looked at."""
    return isinstance(variable, _VARIABLES.LazyVariableTracker) and not variable.is_realized()


def described(value: Any, variables: dict[fx.Node, Any]) -> Any:
    """An argument as it is before the call; None if it is of another kind than can be given for the next layer.

    Adds the variables of tensors to `variables`.
    """
    if is_unread(value):
        number = isinstance(value, _VARIABLES.LazyConstantVariable)
        return value.original_source() if number else None
    return _described(value, variables)


def _described(value: Any, variables: dict[fx.Node, Any]) -> Any:
    if is_unread(value):
        return None  # what the call reads of it, the layer may read without a trace
    value = value.realize() if isinstance(value, _VARIABLES.LazyVariableTracker) else value
    kind = type(value)
    if kind is _VARIABLES.TensorVariable:
        node: fx.Node = value.as_proxy().node
        variables[node] = value
        return node
    if kind is _VARIABLES.ConstantVariable or is_made_object(value):
        return value
    if kind is _VARIABLES.TupleVariable:
        parts = tuple(_described(item, variables) for item in value.items)
        return None if any(part is None for part in parts) else parts
    new = isinstance(value.mutation_type, _KINDS.ValueMutationNew)
    if kind is _VARIABLES.ConstDictVariable and new and value.user_cls is dict:
        items = {key: _described(item, variables) for key, item in value.items.items()}
        return None if any(item is None for item in items.values()) else items
    return None


def unread_again(value: Any) -> Any:
    """An argument to trace the call with, so that a number stays unread outside of the call."""
    if isinstance(value, _VARIABLES.LazyConstantVariable) and is_unread(value):
        return type(value).create(value.original_value(), value.original_source())
    return value


def given_again(
    value: Any, of_source: Callable[[Source], Any], of_node: Callable[[fx.Node], Any]
) -> Any:
    """Dynamo's variable of a described argument, for another layer."""
    if isinstance(value, Source):
        return of_source(value)
    if isinstance(value, fx.Node):
        return of_node(value)
    if isinstance(value, tuple):
        return _VARIABLES.TupleVariable([given_again(part, of_source, of_node) for part in value])
    if isinstance(value, dict):
        items = {key: given_again(part, of_source, of_node) for key, part in value.items()}
        return _VARIABLES.ConstDictVariable(items, mutation_type=_KINDS.ValueMutationNew())
    return value


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, tuple):
        for part in value:
            yield from _parts(part)
    else:
        yield value
