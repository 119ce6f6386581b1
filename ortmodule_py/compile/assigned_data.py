"""Assignments to `.data` of arguments, such as the moving averages of contrastive learning.

The piece computes the new value as a further output, which each run then assigns. Dynamo's `set_` of an
argument would leave the whole piece to eager PyTorch. What reads an argument that trains behind the assignment
gives its gradient to the argument.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from ortmodule_py.compile.shared_outputs import storage_of, value_of
from ortmodule_py.trace.changed_data import with_gradient_of


@dataclass
class AssignedData:
    """The arguments whose `.data` is set, in the order of the outputs behind the `known` ones."""

    arguments: list[int]
    known: int


def take_assigned_data(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> AssignedData | None:
    """Remove the assignments to `.data` of arguments from the graph; None without any."""
    (output,) = gm.graph.find_nodes(op="output")
    arguments = {node: i for i, node in enumerate(gm.graph.find_nodes(op="placeholder"))}
    outputs = tuple(output.args[0])
    assigned: dict[Any, fx.Node] = {}
    for argument in arguments:
        nodes = [user for user in argument.users if _assigns(user, argument)]
        if nodes:  # torch 2.14 puts the example value of before there
            argument.meta["example_value"] = nodes[-1].meta["example_value"]
        if argument in outputs or not all(_can_be_output(gm, node, arguments) for node in nodes):
            continue
        given = example_inputs[arguments[argument]]
        if _has_gradient(argument) and any(_differ_in_size(n.args[1], given) for n in nodes):
            continue  # its gradient would have other sizes than the argument of the piece
        read = argument  # by what follows an assignment
        for node in nodes:
            new: Any = node.args[1]
            with gm.graph.inserting_before(node):
                value = gm.graph.call_method("detach", (new,))
            value.meta = dict(new.meta)
            before, read = read, _with_gradient(value, argument)
            for user in [user for user in before.users if node < user and user not in nodes]:
                user.replace_input_with(before, read)
            assigned[argument] = value
            _erase(node)
    if not assigned:
        return None
    output.args = ((*outputs, *assigned.values()),)
    gm.recompile()
    return AssignedData([arguments[argument] for argument in assigned], len(outputs))


def _is_alike(argument: fx.Node, new: Any) -> bool:
    """Whether the value fits a leaf as it is."""
    known = argument.meta.get("example_value")
    fake = new.meta.get("example_value") if isinstance(new, fx.Node) else None
    if not isinstance(known, Tensor) or not isinstance(fake, Tensor) or not known.is_leaf:
        return False
    return (known.device, known.dtype) == (fake.device, fake.dtype)


def _has_gradient(node: fx.Node) -> bool:
    fake = node.meta.get("example_value")
    return isinstance(fake, Tensor) and fake.requires_grad


def _differ_in_size(node: Any, given: Tensor) -> bool:
    return str(tuple(node.meta["example_value"].shape)) != str(tuple(given.shape))


def _assigns(node: fx.Node, argument: fx.Node) -> bool:
    return node.target in _ASSIGNMENTS and node.args[0] is argument


def _can_be_output(gm: fx.GraphModule, node: fx.Node, arguments: dict[fx.Node, int]) -> bool:
    """Whether the value that `node` assigns can be an output, and what is read behind it another value."""
    argument, *given = node.args
    if len(given) != 1 or not _is_alike(argument, given[0]):
        return False
    if not _is_fresh(given[0], arguments, argument):
        return False
    return not _has_gradient(argument) or _is_read_as_assigned(gm, argument, node)


def _is_read_as_assigned(gm: fx.GraphModule, argument: fx.Node, node: fx.Node) -> bool:
    """Whether backward reads an argument as it is behind this assignment, and nothing changes it in place."""
    before = (user for user in argument.users if user < node and not _assigns(user, argument))
    if any(map(_has_gradient, before)):
        return False
    own = storage_of(argument.meta["example_value"])
    values = (value_of(node) for node in gm.graph.nodes)
    return not any(v is not None and storage_of(v) == own and v._version for v in values)


def _with_gradient(value: fx.Node, argument: fx.Node) -> fx.Node:
    """A value that was assigned to an argument; if that trains, with its gradient."""
    if not _has_gradient(argument):
        return value
    with value.graph.inserting_after(value):
        made = value.graph.call_function(with_gradient_of, (value, argument))
    made.meta = {**value.meta, "example_value": argument.meta["example_value"]}
    return made


def drop_own_data(gm: fx.GraphModule) -> None:
    """Remove assignments of what `.data` is already: `x.data = x.data.to(device)`, and `layer.to(device)`."""
    for node in [node for node in gm.graph.nodes if node.target in _ASSIGNMENTS]:
        argument, *given = node.args
        fake = value_of(given[0]) if len(given) == 1 else None
        if fake is not None and fake is value_of(argument):
            _erase(node)
            continue
        # The example value of the argument has the memory of what is assigned.
        views = [user for user in argument.users if user < node and user.target in _SAME_DATA]
        if fake is not None and any(_is_same(fake, value_of(view)) for view in views):
            _erase(node)
    gm.recompile()


_ASSIGNMENTS = (torch.Tensor.set_, getattr(torch.ops.aten, "shallow_copy_data_", None))
"""Up to torch 2.13, and from 2.14 on."""
_SAME_DATA = (torch._C._autograd._get_data_attr, Tensor.detach, "detach")


def _is_same(fake: Tensor, other: Any) -> bool:
    """Whether these example values are the same memory with the same sizes."""
    if other is None or storage_of(fake) != storage_of(other):
        return False
    first, second = ((x.shape, x.stride(), x.storage_offset()) for x in (fake, other))
    return str(first) == str(second)


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
