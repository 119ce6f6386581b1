"""Keeps `torch.autograd.grad` in the graph: energies and their forces, gradient penalties, inner steps of MAML.

Dynamo can trace the call, but does it only with a setting that is for `backward()`, too, and breaks the graph
there if an output needs the graph that the call frees. The engine frees none: the gradient is part of its graph.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._dynamo.exc import TensorifyScalarRestartAnalysis
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._dynamo.variables import UserFunctionVariable
from torch._dynamo.variables.base import VariableTracker

from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import patch
from ortmodule_py.trace.inner_gradients import calls_autograd_grad

_ARGUMENTS = (
    "outputs",
    "inputs",
    "grad_outputs",
    "retain_graph",
    "create_graph",
    "only_inputs",
    "allow_unused",
    "is_grads_batched",
    "materialize_grads",
)
_MOST_ROWS = 16
"""Of a batch of gradients that is captured: each row is a backward pass in the graph."""


class _Forces(nn.Module):
    def __init__(self, create_graph: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((3,), 0.5))
        self.create_graph = create_graph
        self.energy = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        self.energy = torch.tanh(x * self.weight).sum()
        (slope,) = torch.autograd.grad(self.energy, x, create_graph=self.create_graph)
        return slope


def _probe(trial: Trial) -> bool:
    return trial(_Forces, (torch.ones(3),)) and not trial.graph_breaks


@patch(
    "inner gradients",
    "`torch.autograd.grad` in forward breaks no graph.",
    {(2, 13): "torch._dynamo.variables.torch:TorchInGraphFunctionVariable.call_function"},
    probe=_probe,
    needed_by=None,
)
def _call(call: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    if self.value is not torch.autograd.grad or tx.output.current_tracer.parent is not None:
        return call(self, tx, args, kwargs)  # in the body of an operator
    given = dict(zip(_ARGUMENTS, args, strict=False)) | kwargs
    if _is_batched(given):
        if _rows_of(given) > _MOST_ROWS:
            return call(self, tx, args, kwargs)
        return UserFunctionVariable(_one_by_one).call_function(tx, [], given)
    with torch._dynamo.config.patch(trace_autograd_ops=True):
        return call(self, tx, args, kwargs)


def _probe_freed(trial: Trial) -> bool:
    """A step that trains fails in eager PyTorch, too."""
    make = lambda: _Forces(create_graph=False)  # noqa: E731
    return trial(make, (torch.ones(3),)) and not trial.graph_breaks


def _is_batched(given: dict[str, Any]) -> bool:
    batched = given.get("is_grads_batched")
    return batched is not None and not (
        batched.is_constant_none() or batched.as_python_constant() is False
    )


def _rows_of(given: dict[str, Any]) -> int:
    """The gradients in a batch, more than any limit if they are not known."""
    found = []
    VariableTracker.visit(
        lambda v: (
            found.append(v.as_proxy().node.meta.get("example_value")) if v.is_tensor() else None
        ),
        given.get("grad_outputs"),
    )
    counts = {len(rows.shape) and rows.shape[0] for rows in found if isinstance(rows, Tensor)}
    count = counts.pop() if len(counts) == 1 else None
    return count if isinstance(count, int) and count > 0 else _MOST_ROWS + 1


def _one_by_one(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any,
    retain_graph: Any = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: Any = None,
    is_grads_batched: bool = True,
    materialize_grads: bool = False,
) -> Any:
    batches = (grad_outputs,) if isinstance(grad_outputs, Tensor) else tuple(grad_outputs)
    count = next(len(rows) for rows in batches if rows is not None)
    found = [
        torch.autograd.grad(
            outputs,
            inputs,
            tuple(None if rows is None else rows[i] for rows in batches),
            retain_graph=True,
            create_graph=create_graph,
            allow_unused=allow_unused,
            materialize_grads=materialize_grads,
        )
        for i in range(count)
    ]
    if isinstance(inputs, dict):
        return {name: _stacked([rows[name] for rows in found]) for name in inputs}
    return tuple(_stacked(rows) for rows in zip(*found, strict=True))


def _stacked(rows: Any) -> Tensor | None:
    return None if rows[0] is None else torch.stack(tuple(rows))


@patch(
    "inner gradients that free nothing",
    "`torch.autograd.grad` in forward breaks no graph where `retain_graph` is missing.",
    {(2, 13): "torch._dynamo.output_graph:OutputGraph._validate_outputs_safe_for_autograd_nodes"},
    probe=_probe_freed,
    needed_by=None,
)
def _check(check: Callable[..., Any], self: Any, rv: Any, tx: Any) -> None:
    """Nothing: outputs have their own backward pass."""


def break_at_inner_gradients(gm: fx.GraphModule, why: Exception, logger: logging.Logger) -> None:
    """Have Dynamo trace the frame again, with a graph break at each `torch.autograd.grad`, if it has one.

    Then what stands around the calls is in the engine, which the whole piece is not, because of `why`.
    """
    if not calls_autograd_grad(gm):
        return
    log = InstructionTranslator.current_tx().speculation_log
    if log.graph_break_on_autograd_grad:
        return
    logger.debug("ortmodule_py: no piece with torch.autograd.grad in it: %s", why, exc_info=why)
    log.graph_break_on_autograd_grad = True
    log.autograd_grad_leaked_tensors.append(str(why))
    raise TensorifyScalarRestartAnalysis(restart_reason=str(why))
