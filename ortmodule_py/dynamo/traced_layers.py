"""What is known of a layer that Dynamo has traced (`equal_layers`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx
from torch._guards import Source
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ortmodule_py.dynamo.equal_guards import GuardsOf
from ortmodule_py.dynamo.open_calls import OpenCall, Read
from ortmodule_py.trace.repeats import describe

_VARIABLES: Any = torch._dynamo.variables


@dataclass(eq=False)
class LayerCall:
    """A call of a module, before it is traced."""

    key: Any
    """The description of its arguments, of the thread's modes and of what was traced so far."""
    nodes: list[fx.Node]
    """The nodes of its arguments, each once."""
    variables: list[Any]
    """Dynamo's variables of these nodes."""
    versions: list[int]
    """How often each argument was changed in place."""
    before: fx.Node | None
    """The last node of the graph."""
    symbols: int
    """Symbols that the capture has made."""
    facts: tuple[Any, ...]
    """The state of the thread, and counts, that the trace of a layer that can be copied leaves as they are."""
    begun: int = 0
    """Layers that were begun so far, this one included."""
    opened: bool = False
    """Whether an open call of the layer is being traced."""
    depends_on_older: bool = False
    """Whether the layer may not be copied for what it did with Python objects that the capture had made before."""
    open_calls: list[OpenCall] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    """Of objects that the capture had made before, outside of open calls."""
    numbers: dict[Source, bool] = field(default_factory=dict)
    """What the layer gave to open calls without reading it -> whether it read it elsewhere."""


@dataclass
class TracedLayer:
    """A traced layer."""

    call: LayerCall
    source: Any
    result: Any
    """Nodes, constants, and tuples of them."""
    returned: dict[fx.Node, None]
    """The nodes of the result."""
    calls: list[fx.Node]
    guards: GuardsOf | None = None
    """Collected when another layer is compared for the first time."""


def described_value(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return describe(value)
    if is_traceable_wrapper_subclass(value) or not torch._C._has_storage(value):
        return None  # it has parts, or the values of a functional transform
    gradient = value.is_leaf, value.grad_fn is None, value.is_inference()
    kind = type(value), value.layout, value.is_conj(), value.is_neg()
    return describe(value), describe(value.storage_offset()), gradient, kind


def described_values(value: Any) -> Any:
    parts = value if isinstance(value, (tuple, list)) else [value]
    return list(map(described_value, parts))


def version(node: fx.Node) -> int:
    value = node.meta.get("example_value")
    plain = isinstance(value, Tensor) and not value.is_inference()
    return value._version if plain else 0


def calls_since(before: fx.Node | None, graph: fx.Graph) -> list[fx.Node]:
    """The calls behind a node, in order; none if the node is gone."""
    calls: list[fx.Node] = []
    for node in reversed(graph.nodes):
        if node is before:
            return calls[::-1]
        if node.op != "placeholder":
            calls.append(node)
    return calls[::-1] if before is None else []


def storage_of(node: fx.Node) -> int | None:
    """The memory of a tensor; None of several tensors and of numbers."""
    value = node.meta.get("example_value")
    return next(iter(storages_of(node)), None) if isinstance(value, Tensor) else None


def storages_of(node: fx.Node) -> set[int]:
    value = node.meta.get("example_value")
    parts = value if isinstance(value, (tuple, list)) else [value]
    tensors = [part for part in parts if isinstance(part, Tensor) and torch._C._has_storage(part)]
    return {tensor.untyped_storage()._cdata for tensor in tensors}


def nodes_of(result: Any) -> dict[fx.Node, None] | None:
    """The nodes of a result; None if it is more than tensors, constants and tuples of them."""
    result = realized(result)
    kind = type(result)
    if kind is _VARIABLES.TensorVariable:
        return {result.as_proxy().node: None}
    if kind is _VARIABLES.ConstantVariable:
        return {}
    if kind is not _VARIABLES.TupleVariable:
        return None
    found: dict[fx.Node, None] = {}
    for item in result.items:
        nodes = nodes_of(item)
        if nodes is None:
            return None
        found |= nodes
    return found


def realized(variable: Any) -> Any:
    lazy = isinstance(variable, _VARIABLES.LazyVariableTracker)
    return variable.realize() if lazy and variable.is_realized() else variable


def frozen(result: Any) -> Any:
    """A result as it is now, with nodes in place of tensors."""
    result = realized(result)
    if type(result) is _VARIABLES.TupleVariable:
        return tuple(map(frozen, result.items))
    return result if type(result) is _VARIABLES.ConstantVariable else result.as_proxy().node


def rebuilt(result: Any, variables: dict[fx.Node, Any]) -> Any:
    if isinstance(result, tuple):
        return _VARIABLES.TupleVariable([rebuilt(item, variables) for item in result])
    return variables[result] if isinstance(result, fx.Node) else result
