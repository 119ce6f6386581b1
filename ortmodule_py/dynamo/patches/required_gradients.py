"""`h.requires_grad_()` and `h.requires_grad = True` of values that forward computes.

Models write this in front of checkpoints, where the value comes from frozen layers. Dynamo breaks the graph
at the assignment, and at the call if an output depends on the value, as AOTAutograd drops its effect. Only
two outputs show the effect: the value itself, which is a leaf with a gradient of its own, and one whose
gradient reaches no input.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._dynamo.variables import ConstantVariable

from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import patch


def _probe_assignment(trial: Trial) -> bool:
    def make() -> nn.Module:
        class Assigned(nn.Linear):
            def forward(self, x: Tensor) -> Tensor:
                h = x * 2
                h.requires_grad = True
                return super().forward(h)

        torch.manual_seed(0)
        return Assigned(3, 3)

    return trial(make, (torch.ones(2, 3),)) and not trial.graph_breaks


@patch(
    "assigned requires_grad",
    "`h.requires_grad = True` breaks no graph where h is computed in forward.",
    {(2, 13): "torch._dynamo.variables.builtin:SetAttrBuiltinVariable._call_setattr"},
    probe=_probe_assignment,
    needed_by=None,
)
def _assign(
    assign: Callable[..., Any], self: Any, tx: Any, obj: Any, name_var: Any, val: Any
) -> Any:
    constant = name_var.is_python_constant() and val.is_python_constant()
    if obj.is_tensor() and constant and name_var.as_python_constant() == "requires_grad":
        fake, wanted = obj.as_proxy().node.meta["example_value"], val.as_python_constant()
        computed = wanted is True and obj.source is None
        # Eager refuses the assignment, but not the call, for a value that is no leaf.
        if fake.is_leaf and (fake.requires_grad is wanted or computed):
            obj.call_method(tx, "requires_grad_", [val], {})
            return ConstantVariable.create(None)
    return assign(self, tx, obj, name_var, val)


def _probe_output(trial: Trial) -> bool:
    def make() -> nn.Module:
        class Required(nn.Linear):
            def forward(self, x: Tensor) -> Tensor:
                return super().forward((x * 2).requires_grad_())

        torch.manual_seed(0)
        return Required(3, 3)

    return trial(make, (torch.ones(2, 3),)) and not trial.graph_breaks


@patch(
    "required gradients",
    "`h.requires_grad_()` breaks no graph where outputs need a gradient without it, too.",
    {(2, 13): "torch._dynamo.output_graph:OutputGraph._check_requires_grad_intermediate_outputs"},
    probe=_probe_output,
    needed_by=None,
)
def _check(check: Callable[..., Any], self: Any, rv: Any, tx: Any) -> None:
    required = {
        v.as_proxy().node
        for v in self.leaf_var_creation_order
        if getattr(v, "source", None) is None
    }
    if required:
        reached = _reached_by_inputs(self.graph, required)
        outputs = {v.as_proxy().node for v in rv if v.is_tensor() and v.requires_grad}
        if outputs <= reached:
            return
    check(self, rv, tx)


def _reached_by_inputs(graph: fx.Graph, required: set[fx.Node]) -> set[fx.Node]:
    """The nodes whose gradient reaches an input, but not the values that were made leaves."""
    reached: set[fx.Node] = set()
    for node in graph.nodes:
        fake = node.meta.get("example_value")
        given = node.op in ("placeholder", "get_attr")
        if (given or not reached.isdisjoint(node.all_input_nodes)) and node not in required:
            parts = fake if isinstance(fake, (tuple, list)) else [fake]
            if any(isinstance(part, Tensor) and part.requires_grad for part in parts):
                reached.add(node)
    return reached
