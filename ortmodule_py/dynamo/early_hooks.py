"""Hooks of computed tensors as Dynamo of torch 2.11 and 2.12 writes them: each as an autograd function.

An argument that a hook reads may stand behind its first use. The functions of several hooks of one tensor call
the last hook first, and so does a hook that is registered on a result, outside of the graph.
"""

from __future__ import annotations

from torch import fx
from torch._ops import HigherOrderOperator

from ortmodule_py.base.errors import origin_of


def put_arguments_first(gm: fx.GraphModule) -> None:
    """Move arguments in front of everything else."""
    first = next(node for node in gm.graph.nodes if node.op != "placeholder")
    late = [node for node in gm.graph.nodes if node.op == "placeholder" and first < node]
    for argument in late:
        first.prepend(argument)
    if late:
        gm.recompile()


def hook_out_of_order(gm: fx.GraphModule) -> tuple[str, str] | None:
    """The origin of a hook that another one may have to follow; None without any."""
    for node in gm.graph.nodes:
        if not _is_hook(gm, node):
            continue
        readers = [reader for item in node.users for reader in item.users]
        if any(reader.op == "output" or _is_hook(gm, reader) for reader in readers):
            return origin_of(node)
    return None


def _is_hook(gm: fx.GraphModule, node: fx.Node) -> bool:
    """Whether it is an identity with a backward, and no call of a user's own function."""
    target = node.target
    if not isinstance(target, HigherOrderOperator) or target.name() != "autograd_function_apply":
        return False
    body = gm.get_submodule(str(node.args[0].target))
    calls = [inner for inner in body.graph.nodes if inner.op == "call_method"]
    *_, line = str(node.meta.get("stack_trace", "")).strip().splitlines() or [""]
    return [inner.target for inner in calls] == ["view_as"] and ".apply(" not in line
