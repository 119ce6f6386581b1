"""Writes calls of a traced ATen graph into the graph builder: arguments by schema, sizes as text."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx
from torch._prims_common import is_contiguous_or_false
from torch.fx.experimental.symbolic_shapes import statically_known_true

from ortmodule_py import _C
from ortmodule_py.base.changing_numbers import SIZE, Fixed, changes, values_in
from ortmodule_py.base.errors import CannotLower
from ortmodule_py.lower.number_writer import ArgumentTypes, NumberWriter, UnknownNumber
from ortmodule_py.lower.tensor_meta import dtype_name, encode_int, tensor_meta
from ortmodule_py.trace.record import output_values

_MAKES_SCALAR = torch.ops.aten.scalar_tensor.default
# By prefix: operators that a functional graph cannot represent.
_LEFT_TO_EAGER = {
    "aten.as_strided": "reads memory by strides, regardless of the tensors in it",
    "aten.rrelu_with_noise": "draws into an operand that its gradient reads",
    "_c10d": "is an asynchronous collective",
    "c10d": "is an asynchronous collective",
}


@dataclass
class CallWriter:
    """Writes the nodes of one traced graph into one sink (the builder, or a backward body)."""

    types: ArgumentTypes
    sink: _C.GraphBuilder
    device: torch.device
    ids: dict[fx.Node, list[int]] = field(default_factory=dict)
    numbers: dict[fx.Node, int] = field(default_factory=dict)
    """Ids of numbers that are float64 scalars in the graph."""
    fixed_numbers: list[Fixed] = field(default_factory=list)
    """Calls that specialize a number which may change with each call."""
    missing: Callable[[fx.Node], int] | None = None
    """Makes the id of a node that was not written here."""
    count: int = 0
    """Calls written."""

    def id_of(self, node: fx.Node) -> int:
        """The id of a node with one tensor output."""
        if node not in self.ids and node.op == "get_attr":
            self.ids[node] = [self.sink.constant(_constant(node))]
        if node not in self.ids and self.missing is not None:
            self.ids[node] = [self.missing(node)]
        (value,) = self.ids[node]
        return value

    def write(
        self, node: fx.Node, origin: tuple[str, str], tag: str, gradient: bool = False
    ) -> list[int] | None:
        """Write one node; returns one id per output, or None if its gradient must be traced.

        Raises:
            CannotLower: a functional graph cannot represent the call or an argument.
        """
        ids: list[int] | None
        for beginning, reason in _LEFT_TO_EAGER.items():
            if str(node.target).startswith(beginning) and not self._are_windows(node):
                raise CannotLower(f"{node.target} {reason}", origin)
        if node.target is operator.getitem:
            source, index = node.args
            absent = self.missing is not None and source not in self.ids
            ids = [self.id_of(node)] if absent else [self.ids[source][index]]
            if ids == [-1] and node.users:
                ids = [self._not_computed(node, origin)]
        elif node.target is _MAKES_SCALAR and changes(node.args[0]):
            scalar = self._changing_scalar(node, origin, tag)
            ids = self._call(node, origin, tag, gradient) if scalar is None else [scalar]
        else:
            ids = self._call(node, origin, tag, gradient)
        if ids is not None:
            self.ids[node] = ids
        return ids

    def _not_computed(self, node: fx.Node, origin: tuple[str, str]) -> int:
        """The id of a result that the op does not compute, such as statistics that a norm is given: it is empty."""
        value = node.meta.get("val")
        if not isinstance(value, Tensor) or tuple(value.shape) != (0,):
            source, index = node.args
            raise CannotLower(f"result {index} of {source.target}, which the engine lacks", origin)
        return int(self.sink.constant(torch.zeros(0, dtype=value.dtype, device=self.device)))

    def _are_windows(self, node: fx.Node) -> bool:
        """Whether this is `as_strided` of a row-major tensor that is all of its storage, and has an op."""
        windows = torch.ops.aten.as_strided.default
        if node.target is not windows or not self.sink.has_rule(str(windows)):
            return False
        operand = node.args[0]
        assert isinstance(operand, fx.Node)
        value: Tensor = operand.meta["val"]
        covered = value.untyped_storage().nbytes() == value.numel() * value.element_size()
        return statically_known_true(covered) and is_contiguous_or_false(value)

    def _call(
        self, node: fx.Node, origin: tuple[str, str], tag: str, gradient: bool
    ) -> list[int] | None:
        outputs = [
            self._meta(node, value) if isinstance(value, Tensor) else None
            for value in output_values(node)
        ]
        arguments = self.arguments(node, origin)
        ids = self.sink.call(str(node.target), arguments, outputs, origin, tag, gradient)
        if ids is not None:
            self.count += 1
        return ids

    def _meta(self, node: fx.Node, value: Tensor) -> dict[str, Any]:
        """Metadata of a result. A CPU tensor in a piece on a GPU, such as a range, is computed on the
        GPU, unless it is drawn from the CPU's generator."""
        if value.device != self.device:
            if value.device.type != "cpu":
                raise CannotLower(
                    f"a piece runs on one device, here on {self.device}, but {node.target} makes a "
                    f"tensor on {value.device}"
                )
            if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
                raise CannotLower(
                    f"{node.target} draws from the generator of the CPU in a piece on {self.device}"
                )
        meta = tensor_meta(value, self.types)
        if value.dtype is torch.uint64 and "attention" in str(node.target):
            meta["dtype"] = "int64"  # a generator's state, which only its backward reads
        return meta

    def arguments(self, node: fx.Node, origin: tuple[str, str]) -> list[tuple[str, Any]]:
        """All arguments of the schema by name, in schema order, defaults filled in."""
        if not isinstance(node.target, torch._ops.OpOverload):
            raise CannotLower(f"{node.target} is not an ATen operator")
        values: list[tuple[str, Any]] = []
        for position, argument in enumerate(node.target._schema.arguments):
            if position < len(node.args):
                value: Any = node.args[position]
            elif argument.name in node.kwargs:
                value = node.kwargs[argument.name]
            else:
                value = argument.default_value
            if changing := values_in(value):
                self.fixed_numbers.append((_taker(node, value), origin, changing))
            values.append((argument.name, self.encode(value)))
        return values

    def _changing_scalar(self, node: fx.Node, origin: tuple[str, str], tag: str) -> int | None:
        """Write a scalar tensor of a symbolic number; None if the number cannot be computed here."""
        (result,) = output_values(node)
        writer = NumberWriter(
            self.types, self.sink, self.id_of, self.numbers, str(result.device), origin, tag
        )
        try:
            return writer.write_as(node.args[0], dtype_name(result.dtype))
        except UnknownNumber:
            return None
        finally:
            self.count += writer.count

    def encode(self, value: Any) -> Any:
        """One argument in the builder's types.

        Raises:
            CannotLower: the builder has no such type.
        """
        if isinstance(value, fx.Node):
            known = value.meta.get("val")
            if known is None and "val" in value.meta:
                return None  # an absent result of an operator
            if isinstance(known, (torch.SymFloat, torch.SymBool)):
                # Specializes the number, with a guard in Dynamo's shape environment.
                return float(known) if isinstance(known, torch.SymFloat) else bool(known)
            if isinstance(known, (int, float, torch.SymInt)):
                return self.encode(known)
            return self.types.Val(self.id_of(value))
        if isinstance(value, torch.SymInt):
            return encode_int(value, self.types)
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, torch.dtype):
            return self.types.DType(dtype_name(value))
        if isinstance(value, (torch.device, torch.layout, torch.memory_format)):
            return self.types.Opaque(str(value))
        if isinstance(value, complex):
            return self.types.Opaque(f"complex {value.real!r} {value.imag!r}")
        if isinstance(value, (list, tuple)):
            return [self.encode(item) for item in value]
        raise CannotLower(f"an argument of type {type(value).__name__}")


def _taker(node: fx.Node, value: Any) -> str:
    """The name of the call that specializes a number; SIZE for integers, which several calls may use."""
    known = value.meta.get("val") if isinstance(value, fx.Node) else value
    called = node.meta.get("call", str(node.target))
    return str(called) if isinstance(known, torch.SymFloat) else SIZE


def _constant(node: fx.Node) -> Tensor:
    value = getattr(node.graph.owning_module, str(node.target))
    if not isinstance(value, Tensor) or isinstance(value, torch._subclasses.FakeTensor):
        raise CannotLower(f"the constant {node.target} has no data")
    return value.detach().resolve_conj().resolve_neg()


def is_size_arithmetic(node: fx.Node) -> bool:
    """Whether a node computes a Python number: its users read the expression from its value."""
    return isinstance(
        node.meta.get("val"), (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)
    )
