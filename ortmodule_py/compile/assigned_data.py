"""Assignments to `.data` of arguments, such as the moving averages of contrastive learning.

The piece computes the new value as a further output, which each run then assigns. Dynamo's `set_` of an
argument would leave the whole piece to eager PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx


@dataclass
class AssignedData:
    """The arguments whose `.data` is set, in the order of the outputs behind the `known` ones."""

    arguments: list[int]
    known: int


def take_assigned_data(gm: fx.GraphModule) -> AssignedData | None:
    """Remove the assignments to `.data` of arguments from the graph; None without any."""
    (output,) = gm.graph.find_nodes(op="output")
    arguments = {node: i for i, node in enumerate(gm.graph.find_nodes(op="placeholder"))}
    outputs = tuple(output.args[0])
    assigned: dict[Any, fx.Node] = {}
    for node in gm.graph.find_nodes(op="call_function", target=torch.Tensor.set_):
        argument, *given = node.args
        new: Any = given[0] if len(given) == 1 else None
        if argument not in arguments or argument in outputs:
            continue
        if not _is_alike(argument, new) or not _is_fresh(new, arguments, argument):
            continue
        with gm.graph.inserting_before(node):
            value = gm.graph.call_method("detach", (new,))
        value.meta = dict(new.meta)
        for user in [user for user in argument.users if node < user]:
            user.replace_input_with(argument, value)
        assigned[argument] = value
        _erase(node)
    if not assigned:
        return None
    output.args = ((*outputs, *assigned.values()),)
    gm.recompile()
    return AssignedData([arguments[argument] for argument in assigned], len(outputs))


def _is_alike(argument: fx.Node, new: Any) -> bool:
    """Whether the value fits an argument without a gradient as it is."""
    known = argument.meta.get("example_value")
    fake = new.meta.get("example_value") if isinstance(new, fx.Node) else None
    if not isinstance(known, Tensor) or not isinstance(fake, Tensor) or known.requires_grad:
        return False
    return (known.device, known.dtype) == (fake.device, fake.dtype)


def _is_fresh(new: fx.Node, arguments: dict[fx.Node, int], own: fx.Node) -> bool:
    """Whether the value shares no memory with another argument, as the assignment would keep it so."""
    fakes = [node.meta.get("example_value") for node in arguments if node is not own]
    storages = {id(f.untyped_storage()) for f in fakes if isinstance(f, Tensor)}
    return new not in arguments and id(new.meta["example_value"].untyped_storage()) not in storages


def _erase(node: fx.Node) -> None:
    for user in list(node.users):  # Dynamo corrects the version that `set_` has counted up
        user.graph.erase_node(user)
    node.graph.erase_node(node)


def with_assigned_data(
    run: Callable[..., Any], assigned: AssignedData | None
) -> Callable[..., Any]:
    """`run`, which assigns the further outputs to the arguments."""
    if assigned is None:
        return run

    def assigning(*args: Any) -> Any:
        outputs = run(*args)
        new = outputs[assigned.known :]
        for argument, value in zip(assigned.arguments, new, strict=True):
            args[argument].data = value
        return outputs[: assigned.known]

    return assigning
