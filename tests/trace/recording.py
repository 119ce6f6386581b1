"""A graph builder in Python which notes what capture says and can run it again with torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ortmodule_py.lower.piece import LoweredPiece, lower
from ortmodule_py.lower.sizes.bound_symbols import with_reads


@dataclass(frozen=True)
class Val:
    id: int


@dataclass(frozen=True)
class Dim:
    text: str


@dataclass(frozen=True)
class DType:
    name: str


@dataclass(frozen=True)
class Opaque:
    text: str


@dataclass
class Call:
    target: str
    args: list[tuple[str, Any]]
    outputs: list[dict[str, Any] | None]
    origin: tuple[str, str]
    tag: str
    ids: list[int]


@dataclass
class Gradient:
    outputs: list[int]
    inputs: list[int]
    body: Body
    traced: bool
    ids: list[int]


@dataclass
class Input:
    id: int
    facts: dict[str, Any] | None = None
    symbol: str = ""


_OPAQUE = {"torch.strided": torch.strided} | {
    str(f): f
    for f in (
        torch.contiguous_format,
        torch.preserve_format,
        torch.channels_last,
        torch.channels_last_3d,
    )
}


def _copied(old: Tensor, new: Tensor) -> Tensor:
    return torch.empty_like(old).copy_(new)


# Eager chooses among attention kernels by what requires a gradient, each with a layout of its own;
# `copy` has the layout of the view that it was in eager.
_FREE_LAYOUT = {"aten.scaled_dot_product_attention.default", "aten.copy.default"}


class Ops:
    """What the builder and a backward body share: numbered values and a list of steps."""

    def __init__(self, ids: list[int]) -> None:
        self._ids = ids
        self.without_rule: set[str] = set()
        self.steps: list[Call | Gradient] = []
        self.constants: dict[int, Tensor] = {}

    def has_rule(self, target: str) -> bool:
        return target not in self.without_rule

    def new(self) -> int:
        self._ids[0] += 1
        return self._ids[0]

    def call(
        self,
        target: str,
        args: list[tuple[str, Any]],
        outputs: Sequence[dict[str, Any] | None],
        origin: tuple[str, str],
        tag: str = "",
        gradient: bool = False,
    ) -> list[int] | None:
        if gradient and not self.has_rule(target):
            return None
        ids = [-1 if out is None else self.new() for out in outputs]
        self.steps.append(Call(target, args, list(outputs), origin, tag, ids))
        return ids

    def constant(self, tensor: Tensor) -> int:
        assert type(tensor) is Tensor
        value = self.new()
        self.constants[value] = tensor
        return value


class Body(Ops):
    def __init__(self, ids: list[int]) -> None:
        super().__init__(ids)
        self.saved: list[tuple[int, int]] = []
        self.grads: list[tuple[int, int]] = []
        self.result: list[int] = []

    def body_input(self, value: int) -> int:
        self.saved.append((self.new(), value))
        return self.saved[-1][0]

    def grad_input(self, index: int) -> int:
        self.grads.append((self.new(), index))
        return self.grads[-1][0]

    def output(self, grads: list[int]) -> None:
        self.result = grads


class RecordingBuilder(Ops):
    Val, Dim, DType, Opaque = Val, Dim, DType, Opaque

    def __init__(self, without_rule: Sequence[str] = ()) -> None:
        super().__init__([-1])
        self.without_rule = set(without_rule)
        self.flat_inputs: list[Input] = []
        self.mutations: dict[int, int] = {}
        self.strides: dict[int, list[Any]] = {}
        self.aliases: dict[int, int] = {}
        self.results: list[Any] = []

    def input(self, name, kind, dtype, sizes, strides, requires_grad) -> int:  # type: ignore[no-untyped-def]
        facts = {"name": name, "kind": kind, "dtype": dtype, "sizes": sizes, "strides": strides}
        facts |= {"requires_grad": requires_grad}
        self.flat_inputs.append(Input(self.new(), facts))
        return self.flat_inputs[-1].id

    def symint_input(self, symbol: str, least: float, greatest: float) -> int:
        self.flat_inputs.append(Input(self.new(), None, symbol))
        return self.flat_inputs[-1].id

    def body(self, outputs: list[int]) -> Body:
        return Body(self._ids)

    def custom_gradient(
        self, outputs: list[int], inputs: list[int], body: Body, traced: bool
    ) -> list[int]:
        assert len(body.result) == len(inputs)
        self.steps.append(Gradient(outputs, inputs, body, traced, [self.new() for _ in outputs]))
        return self.steps[-1].ids

    def mutate(self, input_index: int, value: int) -> None:
        self.mutations[input_index] = value

    def alias_output(self, output_index: int, input_index: int) -> None:
        self.aliases[output_index] = input_index

    def output_strides(self, output_index: int, strides: list[Any]) -> None:
        self.strides[output_index] = strides

    def outputs(self, values: list[Any]) -> None:
        self.results = values

    # -- for tests

    @property
    def calls(self) -> list[Call]:
        return [step for step in self.steps if isinstance(step, Call)]

    @property
    def targets(self) -> list[str]:
        return [call.target for call in self.calls]

    def argument(self, target: str, name: str) -> Any:
        """This argument of the first call of `target`."""
        return dict(next(call for call in self.calls if call.target == target).args)[name]


class Replay:
    """One run of what a builder noted, on real tensors, under autograd."""

    def __init__(self, builder: RecordingBuilder, inputs: Sequence[Any]) -> None:
        self.builder = builder
        self.flat = inputs
        self.values: dict[int, Any] = {}
        self.symbols: dict[str, int] = {}

    def run(self) -> list[Any]:
        for index, (given, value) in enumerate(
            zip(self.builder.flat_inputs, self.flat, strict=True)
        ):
            # What backward needs of an input that is written back is its old value.
            self._bind(given, value.clone() if index in self.builder.mutations else value)
        self._steps(self.builder, self.values, check=True)
        results = [self._value(value, self.values) for value in self.builder.results]
        for index, value in self.builder.mutations.items():
            with torch.no_grad():
                self.flat[index].copy_(self.values[value])
        for output, index in self.builder.aliases.items():
            results[output] = self.flat[index]
        return results

    def _bind(self, given: Input, value: Any) -> None:
        self.values[given.id] = value
        if given.facts is None:
            if not given.symbol.isdigit():
                assert self.symbols.setdefault(given.symbol, int(value)) == value
            return
        assert str(value.dtype) == f"torch.{given.facts['dtype']}"
        for size, actual in zip(given.facts["sizes"], value.shape, strict=True):
            if isinstance(size, Dim) and size.text.isidentifier():
                assert self.symbols.setdefault(size.text, actual) == actual

    def _steps(self, ops: Ops, values: dict[int, Any], check: bool) -> None:
        values.update(ops.constants)
        for step in ops.steps:
            if isinstance(step, Gradient):
                self._gradient(step, values)
            else:
                self._call(step, values, check)

    def _call(self, call: Call, values: dict[int, Any], check: bool) -> None:
        namespace, name, overload = call.target.split(".")
        op = getattr(getattr(getattr(torch.ops, namespace), name), overload)
        assert [name for name, _ in call.args] == [a.name for a in op._schema.arguments]
        positional = [
            self._value(value, values)
            for (_, value), argument in zip(call.args, op._schema.arguments, strict=True)
            if not argument.kwarg_only
        ]
        keywords = {
            argument.name: self._value(value, values)
            for (_, value), argument in zip(call.args, op._schema.arguments, strict=True)
            if argument.kwarg_only
        }
        if op is torch.ops.aten.copy.default:
            # Exists for functional graphs alone: eager has no gradient for it.
            op, positional = _copied, positional[:2]
        result = op(*positional, **keywords)
        results = list(result) if isinstance(result, (tuple, list)) else [result]
        for value, meta, out in zip(call.ids, call.outputs, results, strict=True):
            if meta is not None:
                values[value] = self._as_said(meta, out) if call.target in _FREE_LAYOUT else out
                self._check_meta(call.target, meta, values[value], strides=check)

    def _as_said(self, meta: dict[str, Any], out: Tensor) -> Tensor:
        sizes, strides = (self._value(meta[key], {}) for key in ("sizes", "strides"))
        return torch.empty_strided(sizes, strides, dtype=out.dtype).copy_(out)

    def _check_meta(self, target: str, meta: dict[str, Any], out: Tensor, strides: bool) -> None:
        assert str(out.dtype) == f"torch.{meta['dtype']}", target
        sizes = [self._value(size, {}) for size in meta["sizes"]]
        assert sizes == list(out.shape), (target, sizes, out.shape)
        said = [self._value(stride, {}) for stride in meta["strides"]]
        if strides and out.numel():
            pairs = zip(said, out.stride(), out.shape, strict=True)
            assert all(a == b for a, b, size in pairs if size > 1), (target, said, out.stride())

    def _gradient(self, step: Gradient, values: dict[int, Any]) -> None:
        replay = self

        class Explicit(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
                return tuple(tensor.clone() for tensor in tensors[: len(step.outputs)])

            @staticmethod
            def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
                inner = {fresh: values[outer].detach() for fresh, outer in step.body.saved}
                inner |= {fresh: grads[index] for fresh, index in step.body.grads}
                replay._steps(step.body, inner, check=False)
                found = [None if value == -1 else inner[value] for value in step.body.result]
                for grad, outer in zip(found, step.inputs, strict=True):
                    assert grad is None or (grad.shape, grad.dtype) == (
                        values[outer].shape,
                        values[outer].dtype,
                    )
                return (*([None] * len(step.outputs)), *found)

        given = [values[value].detach() for value in step.outputs] + [
            values[value] for value in step.inputs
        ]
        for value, out in zip(step.ids, Explicit.apply(*given), strict=True):
            values[value] = out

    def _value(self, value: Any, values: dict[int, Any]) -> Any:
        if isinstance(value, Val):
            return values[value.id]
        if isinstance(value, Dim):
            assert re.fullmatch(r"[\w\s()+\-*/%,]+", value.text), value.text
            return eval(value.text, {"max": max, "min": min}, self.symbols)
        if isinstance(value, DType):
            return getattr(torch, value.name)
        if isinstance(value, Opaque):
            return _OPAQUE.get(value.text) or torch.device(value.text)
        if isinstance(value, list):
            return [self._value(item, values) for item in value]
        return value


@dataclass
class Backend:
    """A Dynamo backend that lowers each piece and runs it by replay."""

    without_rule: Sequence[str] = ()
    builders: list[RecordingBuilder] = field(default_factory=list)
    pieces: list[LoweredPiece] = field(default_factory=list)
    graphs: list[torch.fx.GraphModule] = field(default_factory=list)

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        builder = RecordingBuilder(self.without_rule)
        self.graphs.append(gm)
        self.pieces.append(lower(gm, example_inputs, builder))
        self.builders.append(builder)
        return with_reads(lambda *inputs: Replay(builder, inputs).run(), self.pieces[-1].reads)

    @property
    def only(self) -> RecordingBuilder:
        (builder,) = self.builders
        return builder
