"""Sizes that Dynamo's graph reads from the content of integer tensors on the CPU.

Dynamo breaks the graph where a size is data, such as the longest of some lengths. Here such a size becomes
an argument of the graph, a symbol like any other: each call evaluates it from the graph's arguments before
the graph runs, in the guards and for the graph, so that other values need no new capture.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._dynamo.bytecode_transformation import create_call_function
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.source import ChainedSource
from torch._dynamo.variables import SymNodeVariable
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.builder import (
    GraphArg,
    TrackedFake,
    wrap_fx_proxy,
    wrap_to_fake_tensor_and_record,
)
from torch._dynamo.variables.lazy import LazyVariableTracker
from torch.fx.experimental.symbolic_shapes import DimDynamic

Read = Callable[[Tensor], int]
"""From a tensor to a size."""

PURE = {
    *("add", "all", "and_", "any", "argsort", "bool", "cat", "clamp", "clip", "clone"),
    *("contiguous", "count_nonzero", "cpu", "cumsum", "detach", "div", "eq", "expand", "flatten"),
    *("flip", "floordiv", "gather", "ge", "getitem", "gt", "index_select", "int", "invert", "le"),
    *("logical_and", "logical_not", "logical_or", "long", "lt", "max", "maximum", "min", "minimum"),
    *("mod", "mul", "ne", "or_", "reshape", "select", "size", "sort", "squeeze", "stack", "sub"),
    *("sum", "to", "transpose", "type", "unsqueeze", "view"),
}
"""Functions and methods that may stand between an argument and lengths: cheap, and without side effects."""
_MADE = {
    torch.arange,
    torch.eye,
    torch.full,
    torch.ones,
    torch.scalar_tensor,
    torch.tensor,
    torch.zeros,
}
"""Functions that make tensors of constants."""
_MOST = 1024
"""Elements of a tensor that a capture computes."""


def read_size(tx: Any, of: VariableTracker, read: Read) -> VariableTracker | None:
    """`read(tensor)` as a symbol of the graph; None if the tensor does not follow from one argument."""
    found = _from_argument(of)
    if found is None:
        return None
    argument, compute = found
    size = _shared(tx, compute, read)
    return argument_of(tx, size, [argument.source], size(argument.example))


def tensor_of_list(tx: Any, numbers: VariableTracker) -> VariableTracker | None:
    """A list or tuple of ints, from outside of the graph, as a tensor; None for other values.

    Dynamo would make each int a constant or a symbol of its own.
    """
    if not isinstance(numbers, LazyVariableTracker) or numbers.is_realized():
        return None
    found, source = numbers.peek_value(), numbers.source
    if type(found) not in (list, tuple) or not found or {type(item) for item in found} != {int}:
        return None
    known = vars(tx.output).setdefault("_ortmodule_lists", {})
    text = _text(source)
    if text not in known:
        install_guard(source.make_guard(GuardBuilder.TYPE_MATCH))
        function = tx.output.install_global_by_id("__lengths", _tensor_of)
        known[text] = _tensor(tx, _CallSource(source, function), _tensor_of(found))
    return known[text]


@torch.compiler.disable
def _tensor_of(numbers: Sequence[Any]) -> Tensor:
    """The numbers as torch converts them; no numbers where it cannot, so that guards fail."""
    try:
        return torch.as_tensor(numbers, dtype=torch.int64, device="cpu")
    except (TypeError, ValueError, RuntimeError):
        return torch.empty(0, dtype=torch.int64, device="cpu")


def _text(source: Any) -> str:
    return source.name() if callable(source.name) else source.name


# ---- from arguments to the tensor ----------------------------------------------------------------


def _from_argument(of: VariableTracker) -> tuple[Any, fx.GraphModule] | None:
    """The argument that the tensor depends on, and the function from one to the other."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    arguments: list[Any] = []

    def copy(node: fx.Node) -> fx.Node | None:
        if node not in copies:
            if node.op == "placeholder":
                argument = node.meta.get("grapharg")
                if arguments or not _is_readable(node, argument):
                    return None
                arguments.append(argument)
                copies[node] = graph.placeholder("argument")
            else:
                if not _is_pure(node) or any(copy(given) is None for given in node.all_input_nodes):
                    return None
                copies[node] = graph.node_copy(node, copies.__getitem__)
        return copies[node]

    last = copy(of.as_proxy().node)
    if last is None or not arguments:
        return None
    graph.output(last)
    return arguments[0], fx.GraphModule({}, graph)


def _is_readable(node: fx.Node, argument: Any) -> bool:
    """Whether this input is a small tensor on the CPU that nothing has changed yet: lengths, a mask, words, a flag.

    Each call reads it several times.
    """
    fake = node.meta.get("example_value")
    known = argument is not None and argument.source is not None and argument.is_tensor
    if not known or not isinstance(fake, Tensor) or fake.is_complex():
        return False
    if fake.is_floating_point() and not _is_flag(fake, argument):
        return False
    return fake.device.type == "cpu" and fake._version == 0


def _is_flag(fake: Tensor, argument: Any) -> bool:
    """Whether a float is one of a module's buffers, as one that tells whether it has been initialized."""
    one = all(isinstance(size, int) and size == 1 for size in fake.shape)
    return one and not fake.requires_grad and "._buffers[" in _text(argument.source)


def constant_tensor(of: VariableTracker) -> Tensor | None:
    """A small tensor on the CPU that is made of constants; None for others."""
    nodes: dict[fx.Node, None] = {}
    ahead = [of.as_proxy().node]
    while ahead:
        node = ahead.pop()
        fake = node.meta.get("example_value")
        if not isinstance(fake, Tensor) or fake.device.type != "cpu" or fake._version:
            return None
        made = node.op == "call_function" and node.target in _MADE and not node.all_input_nodes
        if not made and not (node.all_input_nodes and _is_pure(node)):
            return None
        if not all(isinstance(size, int) for size in fake.shape) or fake.numel() > _MOST:
            return None
        nodes[node] = None
        ahead += node.all_input_nodes
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in of.as_proxy().node.graph.nodes:
        if node in nodes:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(copies[of.as_proxy().node])
    with torch.no_grad():
        found: Tensor = fx.GraphModule({}, graph)()
    return found


def _is_pure(node: fx.Node) -> bool:
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    fake = node.meta.get("example_value")
    unchanged = not isinstance(fake, Tensor) or fake._version == 0
    return node.op in ("call_function", "call_method") and name in PURE and unchanged


def _shared(tx: Any, compute: fx.GraphModule, read: Read) -> Callable[[Tensor], int]:
    """The size as a function of an argument: one object for equal functions of a capture, as it names them."""

    @torch.compiler.disable
    @torch.no_grad()
    def size(argument: Tensor) -> int:
        return read(compute.forward(argument))

    made = vars(tx.output).setdefault("_ortmodule_reads", {})
    return made.setdefault((compute.code, read), size)


# ---- arguments of the graph ----------------------------------------------------------------------


def argument_of(
    tx: Any, size: Callable[..., int], sources: Sequence[Any], value: int
) -> VariableTracker:
    """`size` of what `sources` name, now `value`, as an argument of the graph; one for equal calls."""
    first, *others = sources
    function = tx.output.install_global_by_id("__size", size)
    source = _CallSource(first, function, tuple(others))
    known = tx.output.unspec_variable_map
    text = _text(source)
    if text not in known:
        known[text] = _symbol(tx, source, value)
    return known[text]


@dataclasses.dataclass(frozen=True)
class _CallSource(ChainedSource):
    """A call of a global function with `base` and others."""

    function: str
    others: tuple[Any, ...] = ()

    @property
    def _name_template(self) -> str:
        return f"G[{self.function!r}]({', '.join(['{0}', *map(_text, self.others)])})"

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


def _symbol(tx: Any, source: _CallSource, value: int) -> VariableTracker:
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


def _tensor(tx: Any, source: _CallSource, value: Tensor) -> VariableTracker:
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
