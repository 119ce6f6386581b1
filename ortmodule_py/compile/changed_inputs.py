"""Arguments that a piece changes in place by values with a gradient.

Behind a graph break, layers often change what an earlier piece made: `hidden_states[mask] = 0`. The engine
writes values without a gradient only. So the piece computes on a copy and returns the new value, and torch
writes it into the argument: autograd then knows that the argument comes from the piece.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from ortmodule_py.compile.shared_outputs import SharedOutputs, value_of, views_of


@dataclass
class ChangedInputs:
    """The changed arguments, in the order of the outputs behind the `known` ones."""

    arguments: list[int]
    known: int
    given_back: list[tuple[int, int]]
    """Output and argument where an output is a changed argument."""
    views: SharedOutputs
    """The outputs that are views of a changed argument."""
    original: fx.GraphModule
    """The piece as Dynamo captured it."""

    def around(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """`run`, which changes the arguments."""

        def changing(*args: Any) -> Any:
            given = list(args)
            for i in self.arguments:
                given[i] = args[i].clone()  # backward may read what was there before
            outputs = list(run(*given))
            for i, new in zip(self.arguments, outputs[self.known :], strict=True):
                args[i].copy_(new)
            for output, argument in self.given_back:
                outputs[output] = args[argument]
            return tuple(outputs[: self.known])

        return self.views.behind(changing) if self.views.views else changing


def take_changed_inputs(
    gm: fx.GraphModule, example_inputs: Sequence[Any]
) -> tuple[ChangedInputs | None, fx.GraphModule]:
    """The changed arguments, None without any; the graph with their new values as further outputs."""
    if not torch.is_grad_enabled():
        return None, gm
    arguments = [
        i
        for i, (node, given) in enumerate(
            zip(gm.graph.find_nodes(op="placeholder"), example_inputs, strict=True)
        )
        if _is_changed(node, given)
    ]
    if not arguments:
        return None, gm
    original = gm
    gm = fx.GraphModule(gm, copy.deepcopy(gm.graph))  # Dynamo reads the inputs of its own graph
    placeholders = gm.graph.find_nodes(op="placeholder")
    (output,) = gm.graph.find_nodes(op="output")
    outputs = list(output.args[0])
    views = views_of(gm, arguments)
    if views is None:
        return None, original
    values = [value_of(node) for node in outputs]
    given_back = [
        (j, i)
        for i in arguments
        for j, value in enumerate(values)
        if value is not None and value is value_of(placeholders[i])
    ]
    for i in arguments:
        argument = placeholders[i]
        with gm.graph.inserting_after(placeholders[-1]):
            own = gm.graph.call_method("clone", (argument,))
        own.meta = {"example_value": argument.meta["example_value"]}
        argument.replace_all_uses_with(own, lambda user, own=own: user not in (own, output))
        output.args = ((*output.args[0], own),)
    gm.recompile()
    return ChangedInputs(arguments, len(outputs), given_back, views, original), gm


def with_versions_kept(
    run: Callable[..., Any], gm: fx.GraphModule, changed: Sequence[int]
) -> Callable[..., Any]:
    """`run`, behind which arguments that are changed through `.data` alone have the version of before.

    Autograd does not see such changes: what earlier pieces have saved may be read by backward.
    """
    placeholders = gm.graph.find_nodes(op="placeholder")
    known = {i: value_of(placeholders[i]) for i in changed}
    unseen = [i for i, value in known.items() if value is not None and value._version == 0]
    if not unseen:
        return run

    def keeping(*args: Any) -> Any:
        with torch.autograd._unsafe_preserve_version_counter(tuple(args[i] for i in unseen)):
            return run(*args)

    return keeping


def _is_plain(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout is torch.strided and not value.is_nested


def _is_changed(node: fx.Node, given: Any) -> bool:
    """Whether a value with a gradient is written into an argument; eager refuses leaves with a gradient."""
    new = value_of(node)
    if new is None or not _is_plain(given) or not new.requires_grad or new._version == 0:
        return False
    return not (given.requires_grad and given.is_leaf)
