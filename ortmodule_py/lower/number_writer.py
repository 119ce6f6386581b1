"""Writes Python numbers that change from call to call: a learning rate, `1 / sqrt(length)`.

Sizes stay symbolic integers. Other numbers are computed in the graph as float64 scalars, operator by
operator in the program's order, so that the results are bitwise those of Python.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import sympy
import torch
from torch import fx

from ortmodule_py import _C
from ortmodule_py.base.changing_numbers import has_float
from ortmodule_py.lower.sizes.scaled import ROUNDINGS
from ortmodule_py.lower.sizes.symbolic import dim_text

_UNARY: dict[Any, str] = {
    operator.neg: "aten.neg.default",
    operator.abs: "aten.abs.default",
    round: "aten.round.default",
    math.trunc: "aten.trunc.default",
    math.floor: "aten.floor.default",
    math.ceil: "aten.ceil.default",
    **{
        getattr(torch, f"_sym_{name}"): f"aten.{name}.default"
        for name in (
            "sqrt",
            "log2",
            "cos",
            "sin",
            "tan",
            "acos",
            "asin",
            "atan",
            "cosh",
            "sinh",
            "tanh",
        )
    },
}
_BINARY: dict[Any, str] = {
    operator.add: "aten.add.Tensor",
    operator.sub: "aten.sub.Tensor",
    operator.mul: "aten.mul.Tensor",
    operator.truediv: "aten.div.Tensor",
    operator.floordiv: "aten.floor_divide.default",
    operator.mod: "aten.remainder.Tensor",
    operator.pow: "aten.pow.Tensor_Tensor",
    torch.sym_max: "aten.maximum.default",
    torch.sym_min: "aten.minimum.default",
}
_SAME = {torch.sym_float, torch.sym_int}
_COMPARISONS = {getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge", "not_")}
ARITHMETIC = {*_UNARY, *_BINARY, *_SAME, *_COMPARISONS}
"""Functions of Python numbers; some also take tensors."""
READS_NUMBER = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.item.default}


class UnknownNumber(Exception):
    """A number is computed by a function that has no operator here."""


def size_of(value: torch.SymInt) -> sympy.Expr:
    """The expression of `value` as a size.

    Integers rounded from a symbolic float are specialized: Dynamo's shape environment guards on the
    integer, not on the float.
    """
    expr, shape_env = value.node.expr, value.node.shape_env
    rounded = {
        part
        for part in sympy.preorder_traversal(expr)
        if type(part).__name__ in ROUNDINGS and has_float(part)
    }
    values = {
        part: sympy.Integer(int(shape_env.create_symintnode(part, hint=None))) for part in rounded
    }
    fixed = expr.xreplace(values)
    return sympy.Integer(int(value)) if has_float(fixed) else fixed


class ArgumentTypes(Protocol):
    """Types of arguments beside plain Python values: those of the builder, or `BoundSymbols`."""

    Val: Any
    DType: Any
    Opaque: Any

    def Dim(self, text: str) -> Any:
        """A size, in the grammar of `sizes.symbolic`."""


@dataclass
class NumberWriter:
    """Writes numbers of a traced graph into a sink, as scalars on `device`."""

    types: ArgumentTypes
    sink: _C.GraphBuilder
    id_of: Callable[[fx.Node], int]
    """The id of a tensor."""
    given: dict[fx.Node, int]
    """Ids of numbers that are float64 scalars already."""
    device: str
    origin: tuple[str, str]
    tag: str
    count: int = 0
    """Calls written."""

    def write_as(self, value: Any, dtype: str) -> int:
        """Write `value` as a scalar of this dtype; returns its id.

        Raises:
            UnknownNumber: a function of it has no operator here.
        """
        number = self.write(value)
        if dtype == "float64":
            return number
        return self._call("aten._to_copy.default", {"self": number}, dtype)

    def _call(self, target: str, given: dict[str, Any], dtype: str = "float64") -> int:
        """Write one call; `given` has tensors by their ids."""
        _, packet, overload = target.split(".")
        arguments: list[tuple[str, Any]] = []
        for argument in getattr(getattr(torch.ops.aten, packet), overload)._schema.arguments:
            value = given.get(argument.name, argument.default_value)
            if argument.name in given and isinstance(argument.type, torch.TensorType):
                value = self.types.Val(value)
            elif argument.name == "dtype":
                value = self.types.DType(dtype)
            elif argument.name == "device":
                value = self.types.Opaque(self.device)
            arguments.append((argument.name, value))
        meta = {"dtype": dtype, "device": self.device, "sizes": [], "strides": []}
        self.count += 1
        ids = self.sink.call(target, arguments, [meta], self.origin, self.tag)
        assert ids is not None
        return ids[0]

    def _known(self, node: fx.Node) -> int | None:
        """The id of a number that is in the graph already: given, or read from a tensor."""
        if node.target not in READS_NUMBER:
            return self.given.get(node)
        (source,) = node.args
        assert isinstance(source, fx.Node)
        read = self.id_of(source)
        if source.meta["val"].dtype == torch.float64:
            return read
        return self._call("aten._to_copy.default", {"self": read})

    def write(self, value: Any) -> int:
        """Write `value` as a float64 scalar; returns its id.

        Raises:
            UnknownNumber: a function of it has no operator here.
        """
        known = value.meta.get("val") if isinstance(value, fx.Node) else value
        if isinstance(known, (int, float)):
            return self._call("aten.scalar_tensor.default", {"s": float(known)})
        reads = isinstance(value, fx.Node) and value.target in READS_NUMBER
        if isinstance(known, torch.SymInt) and not reads and not has_float(known.node.expr):
            return self._call(
                "aten.scalar_tensor.default", {"s": self.types.Dim(dim_text(known.node.expr))}
            )
        if not isinstance(value, fx.Node):
            raise UnknownNumber(str(value))
        written = self._known(value)
        if written is not None:
            return written
        if value.target in _SAME and isinstance(known, torch.SymFloat):
            return self.write(value.args[0])
        if value.target in _UNARY and not any(value.args[1:]):  # no `round` to digits
            return self._call(_UNARY[value.target], {"self": self.write(value.args[0])})
        if value.target in _BINARY:
            target = _BINARY[value.target]
            left, right = (self.write(part) for part in value.args)
            second = "exponent" if "pow" in target else "other"
            return self._call(target, {"self": left, second: right})
        raise UnknownNumber(str(value.target))
