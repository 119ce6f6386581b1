"""Hooks of tensors that a piece only returns.

Eager calls the hooks of a tensor in the order of their registration, and more may follow outside of the
piece. So these are registered on the outputs of each run, instead of being part of the graph.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx
from torch._ops import HigherOrderOperator


@dataclass(frozen=True)
class OutputHook:
    """A hook of an output; it reads arguments and further outputs of the piece."""

    output: int
    body: Callable[..., Any]
    arguments: tuple[int | None, ...]
    """The position of each value that it reads, None for an output."""
    outputs: tuple[int | None, ...]
    """None for an argument."""


@dataclass
class OutputHooks:
    """The hooks of a piece, in their order, and the number of outputs that Dynamo knows."""

    hooks: list[OutputHook]
    known: int


def take_output_hooks(gm: fx.GraphModule) -> OutputHooks | None:
    """Remove the hooks of tensors that are outputs and nothing else from the graph; None without any."""
    (output,) = gm.graph.find_nodes(op="output")
    arguments = {node: i for i, node in enumerate(gm.graph.find_nodes(op="placeholder"))}
    outputs = list(output.args[0])
    known, taken = len(outputs), []
    for index, last in enumerate(outputs[:known]):
        hooks, tensor = _hooks_of(last)
        reads = [node for hook in hooks for node in hook.args[2:]]
        if not hooks or not all(node in arguments or _can_be_output(node) for node in reads):
            continue
        outputs += [node for node in dict.fromkeys(reads) if node not in arguments]
        outputs[index] = tensor
        for hook in hooks:
            read = hook.args[2:]
            taken.append(
                OutputHook(
                    index,
                    gm.get_submodule(str(hook.args[1].target)),
                    tuple(arguments.get(node) for node in read),
                    tuple(
                        None if node in arguments else outputs.index(node, known) for node in read
                    ),
                )
            )
        output.args = (tuple(outputs),)
        for hook in reversed(hooks):
            gm.graph.erase_node(hook)
    if not taken:
        return None
    gm.recompile()
    return OutputHooks(taken, known)


def _can_be_output(node: Any) -> bool:
    """Whether a value that a hook reads may become an output: it then gets no gradient of its own."""
    fake = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    return isinstance(fake, Tensor) and not fake.requires_grad


def _hooks_of(node: Any) -> tuple[list[Any], Any]:
    """The hooks of a returned tensor, in their order, and the tensor that they are registered on."""
    hooks: list[Any] = []
    while isinstance(node, fx.Node) and _is_hook(node) and len(node.users) == 1:
        hooks.insert(0, node)
        node = node.args[0]
    only = hooks and len(node.users) == 1 and node.op != "placeholder"
    return (hooks, node) if only else ([], node)


def _is_hook(node: fx.Node) -> bool:
    return isinstance(node.target, HigherOrderOperator) and node.target.name() == "register_hook"


def with_output_hooks(run: Callable[..., Any], hooks: OutputHooks | None) -> Callable[..., Any]:
    """`run`, which registers these hooks on its outputs."""
    if hooks is None:
        return run

    def hooked(*args: Any) -> Any:
        outputs = run(*args)
        for hook in hooks.hooks:
            value = outputs[hook.output]
            if value.requires_grad:
                places = zip(hook.arguments, hook.outputs, strict=True)
                read = [args[i] if i is not None else outputs[j] for i, j in places]
                value.register_hook(functools.partial(_call, hook.body, read))
        return outputs[: hooks.known]

    return hooked


def _call(body: Callable[..., Any], read: list[Any], gradient: Tensor) -> Any:
    return body(gradient, *read)
