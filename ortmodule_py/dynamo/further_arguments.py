"""Further arguments of a graph that Dynamo captures: numbers and tensors that each call computes from others."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.bytecode_transformation import create_call_function
from torch._dynamo.source import ChainedSource
from torch._dynamo.variables import SymNodeVariable
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.builder import (
    GraphArg,
    TrackedFake,
    wrap_fx_proxy,
    wrap_to_fake_tensor_and_record,
)
from torch.fx.experimental.symbolic_shapes import DimDynamic


def argument_of(
    tx: Any, size: Callable[..., int], sources: Sequence[Any], value: int
) -> VariableTracker:
    """`size` of what `sources` name, now `value`, as an argument of the graph; one for equal calls."""
    first, *others = sources
    function = tx.output.install_global_by_id("__size", size)
    source = CallSource(first, function, tuple(others))
    known = tx.output.unspec_variable_map
    text = text_of_source(source)
    if text not in known:
        known[text] = _symbol(tx, source, value)
    return known[text]


@dataclasses.dataclass(frozen=True)
class CallSource(ChainedSource):
    """A call of a global function with `base` and others."""

    function: str
    others: tuple[Any, ...] = ()

    @property
    def _name_template(self) -> str:
        return f"G[{self.function!r}]({', '.join(['{0}', *map(text_of_source, self.others)])})"

    if not hasattr(ChainedSource, "_name_template"):  # a torch in which these are methods

        def name(self) -> str:
            return self._name_template.format(self.base.name())

        def guard_source(self) -> Any:
            return self.base.guard_source()

    def reconstruct(self, codegen: Any) -> None:
        load = codegen.create_load_global(self.function, add=True)
        codegen.add_push_null(lambda: codegen.append_output(load))
        for argument in (self.base, *self.others):
            codegen(argument)
        codegen.extend_output(create_call_function(1 + len(self.others), False))


def _symbol(tx: Any, source: CallSource, value: int) -> VariableTracker:
    """The size as an argument of the graph, like an int that changes (`VariableBuilder.wrap_symint`)."""
    output = tx.output
    symbol = output.shape_env.create_unspecified_symint_and_symbol(
        value, source, DimDynamic.DYNAMIC
    )
    output.tracked_fakes.append(TrackedFake(symbol, source, None))
    proxy = output.root_tracer.create_graph_input("size", type(symbol), symbol, source=source)
    output.root_tracer.bound_symbols[symbol.node.expr] = proxy
    proxy.node.meta["grapharg"] = GraphArg(
        source,
        symbol,
        pass_arg_as_tensor=False,
        fake_tensor=None,
        is_tensor=False,
        example_strong_ref=symbol,
    )
    return SymNodeVariable.create(tx, proxy, symbol, source=source)


def tensor_argument(tx: Any, source: CallSource, value: Tensor) -> VariableTracker:
    """The tensor as an argument of the graph whose sizes may change."""
    torch._dynamo.maybe_mark_dynamic(value, 0)
    fake = wrap_to_fake_tensor_and_record(value, tx=tx, source=source, is_tensor=True)
    proxy = tx.output.root_tracer.create_graph_input("lengths", type(value), fake, source=source)
    proxy.node.meta["grapharg"] = GraphArg(
        source,
        value,
        pass_arg_as_tensor=False,
        fake_tensor=fake,
        example_strong_ref=value,
    )
    return wrap_fx_proxy(tx, proxy, example_value=fake, source=source)


def text_of_source(source: Any) -> str:
    """A source as guards write it."""
    return source.name() if callable(source.name) else source.name
