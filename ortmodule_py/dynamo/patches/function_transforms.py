"""Breaks the graph at an `autograd.Function` under a transform of torch.func, and runs the transform in Python.

Dynamo enters the transform while it traces, inlines the function's forward and drops its backward, `jvp` and
`vmap`, which is right for integers under `vmap` alone. Outside of transforms it does the same if no argument needs
a gradient. The operators of forward then have gradients with respect to what forward reads besides its arguments;
in eager PyTorch they have none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.ctx_manager import GradModeVariable

from ortmodule_py.base.errors import CannotLower
from ortmodule_py.dynamo.graph_breaks import user_line
from ortmodule_py.dynamo.patches.probes import Trial
from ortmodule_py.dynamo.patches.table import break_graph, calls_named, capturing_compiler, patch

_VMAP = torch._C._functorch.TransformType.Vmap
_ENTERED = {"_grad_increment_nesting", "_jvp_increment_nesting", "_vmap_increment_nesting"}


class _Tripled(torch.autograd.Function):
    """The identity, with three times its gradient."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad * 3


def _probe(trial: Trial) -> bool:
    slope = torch.func.grad(lambda x: (_Tripled.apply(x) * 2).sum())
    return trial(lambda: lambda x: slope(x) + x, (torch.ones(3, requires_grad=True),))


def _enters_transform(gm: fx.GraphModule) -> bool:
    return calls_named(gm, _ENTERED)


@patch(
    "function_transforms",
    "An autograd.Function under a transform of torch.func keeps its own backward, jvp and vmap.",
    "torch._dynamo.variables.misc:AutogradFunctionVariable.call_apply",
    probe=_probe,
    needed_by=_enters_transform,
)
def _apply(
    call_apply: Callable[..., Any], self: Any, tx: Any, args: Any, kwargs: dict[str, Any]
) -> Any:
    outside = torch._C._functorch.peek_interpreter_stack() is None
    if outside and (not torch.is_grad_enabled() or _needs_gradient((args, kwargs))):
        return call_apply(self, tx, args, kwargs)
    if outside or _is_batched_alone(self.fn_cls, (args, kwargs)):
        disabled = GradModeVariable.create(tx, False, initialized=True)
        result = call_apply(self, tx, args, kwargs)
        disabled.exit(tx)
        return result
    reason = f"an autograd.Function, {self.fn_cls.__name__}, under a transform of torch.func"
    compiler: Any = capturing_compiler()
    compiler.log.transforms.refuse(tx, CannotLower(reason, ("", user_line())))
    break_graph(
        reason,
        "It would lose its own backward, jvp and vmap. The transform runs in eager PyTorch.",
        "Call the transform outside of the module.",
    )


def _needs_gradient(variables: Any) -> bool:
    return any(v.requires_grad is not False for v in _tensors(variables))


def _tensors(variables: Any) -> list[Any]:
    found: list[Any] = []
    VariableTracker.visit(lambda v: found.append(v) if v.is_tensor() else None, variables)
    return found


def _is_batched_alone(function: Any, variables: Any) -> bool:
    """Whether forward is all there is: on integers, under `vmap` only, whose rule torch makes of it (masks)."""
    levels = torch._C._functorch.get_interpreter_stack() or []
    if not function.generate_vmap_rule or any(level.key() != _VMAP for level in levels):
        return False
    examples = [v.as_proxy().node.meta["example_value"] for v in _tensors(variables)]
    return not any(x.is_floating_point() or x.is_complex() for x in examples)
