"""The gradient of an operator without a rule: a joint trace of forward and backward."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, fx
from torch._decomp.decompositions import affine_grid_generator

from ortmodule_py.base.errors import CannotLower
from ortmodule_py.trace.record import TracedFunction, may_require_gradient, output_values


@dataclass
class JointTrace:
    """Forward and backward of one operator, traced together and then split."""

    traced: TracedFunction
    """Its placeholders are the operands, then numbers and gradients."""
    forward: list[fx.Node]
    backward: list[fx.Node]
    """Those that depend on a gradient, and what only they read."""
    outputs: list[Any]
    differentiable: list[int]
    """Outputs that have a gradient."""
    inputs: list[int]
    """Indices of the tensor operands with a gradient."""
    gradients: list[Any]
    """Gradients of `inputs`; None for an absent one."""
    gradient_placeholders: list[fx.Node]
    """Those of the gradients of `differentiable`."""

    @staticmethod
    def operands(node: fx.Node) -> list[fx.Node]:
        """The operator's tensor operands, each node once."""
        return [
            operand
            for operand in node.all_input_nodes
            if isinstance(operand.meta.get("val"), Tensor)
        ]

    @staticmethod
    def read(node: fx.Node) -> list[int]:
        """The outputs that may get a gradient, as they have users.

        Others must get none instead of zeros: if eigenvectors have a gradient, it is divided by
        differences of eigenvalues, and zeros may become 0 / 0.
        """
        return [
            i
            for i, value in enumerate(output_values(node))
            if may_require_gradient(value) and _is_read(node, i)
        ]

    @staticmethod
    def of(node: fx.Node, flags: list[bool], trace: Callable[..., TracedFunction]) -> JointTrace:
        """Trace `node` with gradients for the operands whose flag is set."""
        operands = JointTrace.operands(node)
        numbers = [n for n in node.all_input_nodes if n not in operands]
        values = output_values(node)
        floats = JointTrace.read(node)
        inputs = [
            i
            for i, flag in enumerate(flags)
            if flag and may_require_gradient(operands[i].meta["val"])
        ]
        found: list[int] = []
        function = joint_function(node, operands, numbers, inputs, floats, found)
        patterns = [operand.meta["val"] for operand in operands]
        patterns += [number.meta["val"] for number in numbers] + [values[i] for i in floats]
        traced = trace(function, patterns)
        first = len(operands) + len(numbers)
        positions = [first + floats.index(i) for i in found]
        return _split(traced, len(values), found, inputs, positions)


def _is_read(node: fx.Node, output: int) -> bool:
    return any(
        user.target != operator.getitem or (user.args[1] == output and user.users)
        for user in node.users
    )


def _copy(operand: Tensor, src: Tensor, non_blocking: bool = False) -> Tensor:
    return operand.clone().copy_(src, non_blocking)


def _draws_like(draw: Any) -> Callable[..., Any]:
    return lambda operand, *args, **kwargs: draw(operand.detach(), *args, **kwargs)


def _draws_over(draw: Any) -> Callable[..., Any]:
    """A draw into an operand that may need a gradient: zeros, as autograd has for the form in place."""

    def drawn(operand: Tensor, *args: Any, **kwargs: Any) -> Any:
        zeros = torch.ops.aten.fill.Scalar(operand, 0)
        return draw(zeros.detach(), *args, **kwargs) + zeros

    return drawn


OVERWRITING_DRAWS = {
    torch.ops.aten.bernoulli.p,
    torch.ops.aten.cauchy.default,
    torch.ops.aten.exponential.default,
    torch.ops.aten.geometric.default,
    torch.ops.aten.log_normal.default,
    torch.ops.aten.normal_functional.default,
    torch.ops.aten.random.default,
    torch.ops.aten.random.to,
    torch.ops.aten.uniform.default,
}
"""Functional forms of draws in place; autograd has no formulas for them."""


def _on_parts(scatter: Any) -> Callable[..., Tensor]:
    """`scatter` on the real and imaginary parts of complex tensors, which have no gradient in autograd."""
    names = [argument.name for argument in scatter._schema.arguments]

    def scattered(operand: Tensor, src: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if not operand.is_complex():
            return cast(Tensor, scatter(operand, src, *args, **kwargs))
        given = {a.name: a.default_value for a in scatter._schema.arguments[2:]}
        given |= dict(zip(names[2:], args, strict=False)) | kwargs
        for name in given.keys() & {"dim", "dim1", "dim2"}:
            given[name] %= operand.dim()
        base, part = (torch.view_as_real(value.resolve_conj()) for value in (operand, src))
        if "dim2" in given:
            part = part.transpose(-1, -2)  # a diagonal is the last dim
        return torch.view_as_complex(scatter(base, part, **given).contiguous())

    return scattered


def _filled(operand: Tensor, dim: int, index: Tensor, value: Tensor) -> Tensor:
    """`index_fill` by a mask, as the gradient of the value has as many terms as there are different indices."""
    if operand.dim() == 0:
        return _filled(operand.view(1), 0, index, value).view(())
    chosen = operand.new_zeros(operand.shape[dim], dtype=torch.bool).index_fill(0, index, True)
    chosen = chosen.view(-1, *(1,) * (operand.dim() - 1 - dim % operand.dim()))
    return torch.where(chosen, value.to(operand.dtype), operand)


_DIFFERENTIABLE_FORMS: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.index_fill.int_Tensor: _filled,
    # Without a gradient of complex numbers.
    torch.ops.aten.zero.default: lambda operand: torch.ops.aten.fill.Scalar(operand, 0),
    # Made by functionalization, and without a gradient in autograd.
    torch.ops.aten.copy.default: _copy,
    # ATen chooses it for a table that needs no gradient; the weights per sample may need one.
    torch.ops.aten._embedding_bag_forward_only.default: torch.ops.aten._embedding_bag.default,
    **{
        scatter: _on_parts(scatter)
        for scatter in (
            torch.ops.aten.slice_scatter.default,
            torch.ops.aten.select_scatter.default,
            torch.ops.aten.diagonal_scatter.default,
        )
    },
    # Its backward takes no symbolic sizes.
    torch.ops.aten.affine_grid_generator.default: affine_grid_generator,
    # Autograd has no formula for it, although no gradient reaches its operand.
    **{
        draw: _draws_like(draw)
        for draw in (torch.ops.aten.randint_like.default, torch.ops.aten.randint_like.low_dtype)
    },
    **{draw: _draws_over(draw) for draw in OVERWRITING_DRAWS},
}


def joint_function(
    node: fx.Node,
    operands: list[fx.Node],
    numbers: list[fx.Node],
    inputs: list[int],
    floats: list[int],
    found: list[int],
) -> Callable[..., list[Any]]:
    """A function (operands, numbers, gradients) -> (outputs, gradients of `inputs`).

    Its call sets `found` to the indices of the differentiable outputs.
    """

    def function(*args: Any) -> list[Any]:
        given = dict(zip([*operands, *numbers], args, strict=False))
        grads = dict(zip(floats, args[len(given) :], strict=True))
        # On this thread, which has the recording modes: autograd would run nodes of CUDA tensors on
        # the device's thread.
        with torch.enable_grad(), torch.autograd.set_multithreading_enabled(False):
            for i in inputs:
                given[operands[i]].requires_grad_()
            call_args, call_kwargs = fx.map_arg((node.args, node.kwargs), lambda n: given[n])
            results = _DIFFERENTIABLE_FORMS.get(node.target, node.target)(*call_args, **call_kwargs)
            outs = list(results) if isinstance(results, (tuple, list)) else [results]
            found[:] = [i for i in floats if outs[i].requires_grad]
            wanted = [given[operands[i]] for i in inputs]
            gradients: Sequence[Any] = [None] * len(wanted)
            if found:
                gradients = torch.autograd.grad(
                    [outs[i] for i in found], wanted, [grads[i] for i in found], allow_unused=True
                )
        return [
            *(
                out.detach() if isinstance(out, Tensor) and out.requires_grad else out
                for out in outs
            ),
            *gradients,
        ]

    return function


def _ancestors(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """The nodes and all that they read."""
    found: set[fx.Node] = set()
    left = list(nodes)
    while left:
        node = left.pop()
        if node not in found:
            found.add(node)
            left += node.all_input_nodes
    return found


def _is_fixed(node: fx.Node) -> bool:
    """Whether forward makes what only backward reads: draws, and what has no gradient itself, such
    as masks. Backward makes the rest from the operands and results, as then it can be differentiated.
    """
    if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
        return True
    values = [value for value in output_values(node) if isinstance(value, Tensor)]
    return not any(may_require_gradient(value) for value in values)


def source_of(node: fx.Node) -> fx.Node:
    """The node whose value a chain of detached ones passes on: what autograd saves is detached."""
    while node.target is torch.ops.aten.detach.default:
        (node,) = node.all_input_nodes
    return node


def _split(
    traced: TracedFunction,
    output_count: int,
    found: list[int],
    inputs: list[int],
    positions: list[int],
) -> JointTrace:
    placeholders = traced.placeholders()
    given = [placeholders[i] for i in positions]
    late = set(given)
    calls = traced.calls()
    for node in calls:
        if any(operand in late for operand in node.all_input_nodes):
            late.add(node)
    outputs = traced.outputs()
    if any(out in late for out in outputs[:output_count]):
        raise CannotLower("an output of the forward depends on a gradient")
    needed = _ancestors(out for out in outputs[:output_count] if isinstance(out, fx.Node))
    fixed = {node for node in calls if node not in late and _is_fixed(node)}
    forward = needed | _ancestors(fixed)
    backward: dict[fx.Node, None] = {}  # in the order of the calls
    for node in calls:
        source = node.args[0] if node.target is operator.getitem else None
        if source in forward and source not in backward:
            forward.add(node)  # with the result that it is an element of
        elif node in late or not (node in needed or node in fixed or source_of(node) is not node):
            backward[node] = None
    return JointTrace(
        traced,
        [node for node in calls if node in forward],
        list(backward),
        outputs[:output_count],
        found,
        inputs,
        outputs[output_count:],
        given,
    )
