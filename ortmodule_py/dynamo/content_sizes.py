"""Sizes that Dynamo's graph reads from the content of integer tensors on the CPU.

Dynamo breaks the graph where a size is data, such as the longest of some lengths. Here such a size becomes
an argument of the graph, a symbol like any other: each call evaluates it from the graph's arguments before
the graph runs, in the guards and for the graph, so that other values need no new capture.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.lazy import LazyVariableTracker

from ortmodule_py.dynamo.computed_sizes import Sizes, evaluated, text_of
from ortmodule_py.dynamo.further_arguments import (
    CallSource,
    argument_of,
    tensor_argument,
    text_of_source,
)

Read = Callable[[Tensor], int]
"""From a tensor to a size."""

PURE = {
    *("abs", "add", "all", "amax", "amin", "and_", "any", "argsort", "bitwise_and", "bitwise_not"),
    *("bitwise_or", "bool", "broadcast_to", "cat", "chunk", "clamp", "clip", "clone"),
    *("contiguous", "count_nonzero", "cpu", "cumsum", "detach", "diag", "diagonal", "diff", "div"),
    *("eq", "expand", "expand_as", "flatten", "flip", "floordiv", "full_like", "gather", "ge"),
    *(
        "getitem",
        "gt",
        "index_select",
        "int",
        "invert",
        "isin",
        "le",
        "logical_and",
        "logical_not",
        "logical_or",
    ),
    *("logical_xor", "long", "lt", "masked_fill", "max", "maximum", "min", "minimum", "mod", "mul"),
    *(
        "narrow",
        "ne",
        "neg",
        "nonzero_static",
        "numel",
        "ones_like",
        "or_",
        "pad",
        "permute",
        "ravel",
        "remainder",
        "repeat",
    ),
    *(
        "repeat_interleave",
        "reshape",
        "roll",
        "scatter",
        "select",
        "size",
        "sort",
        "squeeze",
        "stack",
        "sub",
        "sum",
        "swapaxes",
    ),
    *("t", "to", "transpose", "tril", "triu", "type", "unbind", "unflatten", "unsqueeze", "view"),
    *("where", "xor", "zeros_like"),
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
_ATTRIBUTES = {"T", "mT"}
_MOST = 1024
"""Elements of a tensor that a capture computes."""


def read_size(tx: Any, of: VariableTracker, read: Read) -> VariableTracker | None:
    """`read(tensor)` as a symbol of the graph; None if the tensor does not follow from arguments."""
    found = _Arguments()
    last = found.copy(of.as_proxy().node)
    if last is None or not found.sources:
        return None
    found.graph.output(last)
    size = _shared(tx, fx.GraphModule({}, found.graph), read)
    return argument_of(tx, size, found.sources, size(*found.now))


def follows_from_arguments(of: VariableTracker) -> bool:
    """Whether `read_size` can read the tensor."""
    return _Arguments().copy(of.as_proxy().node) is not None


def constant_of_sizes(of: VariableTracker) -> Tensor | None:
    """A tensor that is made of constants and of sizes that the capture has fixed; None for others."""
    found = _Arguments()
    last = found.copy(of.as_proxy().node)
    if last is None or found.sources:
        return None
    found.graph.output(last)
    with torch.no_grad():
        made: Tensor = fx.GraphModule({}, found.graph)()
    return made


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
    text = text_of_source(source)
    if text not in known:
        install_guard(source.make_guard(GuardBuilder.TYPE_MATCH))
        function = tx.output.install_global_by_id("__lengths", _tensor_of)
        known[text] = tensor_argument(tx, CallSource(source, function), _tensor_of(found))
    return known[text]


@torch.compiler.disable
def _tensor_of(numbers: Sequence[Any]) -> Tensor:
    """The numbers as torch converts them; no numbers where it cannot, so that guards fail."""
    try:
        return torch.as_tensor(numbers, dtype=torch.int64, device="cpu")
    except (TypeError, ValueError, RuntimeError):
        return torch.empty(0, dtype=torch.int64, device="cpu")


# ---- from arguments to the tensor ----------------------------------------------------------------


class _Arguments:
    """The arguments that a tensor of the graph depends on, and the function from them to it."""

    def __init__(self) -> None:
        self.graph = fx.Graph()
        self.sources: list[Any] = []
        self.now: list[Any] = []
        """Their values in this capture."""
        self._sizes = Sizes()
        self._symbols: dict[str, fx.Node] = {}
        self._copies: dict[fx.Node, fx.Node] = {}

    def copy(self, node: fx.Node) -> fx.Node | None:
        """The node in the function; None if it depends on more than arguments that can be read."""
        if node not in self._copies:
            copied = self._copied(node)
            if copied is None:
                return None
            self._copies[node] = copied
        return self._copies[node]

    def _copied(self, node: fx.Node) -> fx.Node | None:
        text = text_of(node)
        if text is not None:
            return self._size(node, text)
        if node.op == "placeholder":
            argument = node.meta.get("grapharg")
            if not _is_readable(node, argument):
                return None
            return self._placeholder(argument.source, argument.example)
        known = _is_pure(node) or _is_made(node)
        if not known or any(self.copy(given) is None for given in node.all_input_nodes):
            return None
        return self.graph.node_copy(node, self._copies.__getitem__)

    def _size(self, node: fx.Node, text: str) -> fx.Node | None:
        if not self._sizes.reach(node):
            return None
        named = zip(self._sizes.sources.items(), self._sizes.now, strict=True)
        for (name, source), now in named:
            if name not in self._symbols:
                self._symbols[name] = self._placeholder(source, now)
        return self.graph.call_function(evaluated, (text, dict(self._symbols)))

    def _placeholder(self, source: Any, now: Any) -> fx.Node:
        self.sources.append(source)
        self.now.append(now)
        return self.graph.placeholder(f"argument_{len(self.sources)}")


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
    return one and not fake.requires_grad and "._buffers[" in text_of_source(argument.source)


def constant_tensor(of: VariableTracker) -> Tensor | None:
    """A small tensor on the CPU that is made of constants; None for others."""
    nodes: dict[fx.Node, None] = {}
    ahead = [of.as_proxy().node]
    while ahead:
        node = ahead.pop()
        fake = node.meta.get("example_value")
        if not isinstance(fake, Tensor) or fake.device.type != "cpu" or fake._version:
            return None
        made = _is_made(node) and not node.all_input_nodes
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
    known = name in PURE or (name == "getattr" and node.args[1] in _ATTRIBUTES)
    return node.op in ("call_function", "call_method") and known and _is_unchanged(node)


def _is_made(node: fx.Node) -> bool:
    """Whether the node makes a tensor on the CPU of numbers."""
    made = node.op == "call_function" and node.target in _MADE and _is_unchanged(node)
    fake = node.meta.get("example_value")
    return made and isinstance(fake, Tensor) and fake.device.type == "cpu"


def _is_unchanged(node: fx.Node) -> bool:
    fake = node.meta.get("example_value")
    return not isinstance(fake, Tensor) or fake._version == 0


def _shared(tx: Any, compute: fx.GraphModule, read: Read) -> Callable[..., int]:
    """The size as a function of arguments: one object for equal functions of a capture, as it names them."""

    @torch.compiler.disable
    @torch.no_grad()
    def size(*arguments: Any) -> int:
        return read(compute.forward(*arguments))

    made = vars(tx.output).setdefault("_ortmodule_reads", {})
    return made.setdefault((compute.code, read), size)
