"""Gradients that are no rules: a user's own backward, and the traced gradient of an operator without a rule."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch._decomp.decompositions import affine_grid_generator

from ortmodule_py.lower.builder import CannotLower
from ortmodule_py.lower.number_writer import changes


@dataclass
class TracedFunction:
    """A functional ATen graph recorded apart from the piece."""

    graph: fx.Graph

    def calls(self) -> list[fx.Node]:
        """The operators, without arithmetic on sizes."""
        return [
            node for node in self.graph.nodes if node.op == "call_function" and not _is_number(node)
        ]

    def outputs(self) -> list[Any]:
        """What the function returned: nodes, numbers or None."""
        (output,) = (node for node in self.graph.nodes if node.op == "output")
        return list(output.args[0])

    def placeholders(self) -> list[fx.Node]:
        """One per argument."""
        return [node for node in self.graph.nodes if node.op == "placeholder"]


def _is_number(node: fx.Node) -> bool:
    return not isinstance(node.meta.get("val"), (Tensor, tuple, list))


# ---- a user's own backward ----------------------------------------------------------------------


@dataclass
class GradientBody:
    """A user's backward as a function of (gradients of the differentiable outputs, saved values)."""

    function: Callable[..., list[Any]]
    patterns: list[Any]
    gradients: dict[int, int]
    """Argument position -> index among the differentiable outputs."""
    saved_tensors: list[int]
    """Argument positions of the saved tensors, in order."""
    saved_numbers: list[int]
    """Argument positions of the saved numbers that change from call to call."""

    @staticmethod
    def of_user_backward(
        run: Callable[[list[Any]], Any],
        outs: Sequence[Any],
        differentiable: Sequence[int],
        inputs: Sequence[tuple[int, Tensor]],
        saved: Sequence[Any],
    ) -> GradientBody:
        """`run` takes all gradients and saved values; `inputs` are (position among its results, input)."""
        count = len(differentiable)

        def function(*args: Any) -> list[Any]:
            given = dict(zip(differentiable, args[:count], strict=True))
            grads = [given[i] if i in given else _zeros_like(out) for i, out in enumerate(outs)]
            results = run([*grads, *args[count:]])
            results = results if isinstance(results, (tuple, list)) else [results]
            return [_fitted(results[position], tensor) for position, tensor in inputs]

        patterns = [outs[i] for i in differentiable] + list(saved)
        tensors = [i for i in range(count, len(patterns)) if isinstance(patterns[i], Tensor)]
        numbers = [i for i in range(count, len(patterns)) if changes(patterns[i])]
        return GradientBody(function, patterns, {i: i for i in range(count)}, tensors, numbers)


def _zeros_like(out: Any) -> Any:
    """Autograd gives zeros for outputs that get no gradient."""
    if not isinstance(out, Tensor):
        return None
    return torch.zeros(out.shape, dtype=out.dtype, device=out.device)


def _fitted(grad: Any, tensor: Tensor) -> Any:
    """Autograd sums a gradient to its input's shape and casts it to its dtype; inputs of integers get none."""
    if not isinstance(grad, Tensor) or not tensor.is_floating_point():
        return None
    if grad.dim() != tensor.dim() or any(
        _differ(a, b) for a, b in zip(grad.shape, tensor.shape, strict=True)
    ):
        grad = grad.sum_to_size(tensor.shape)
    return grad.to(tensor.dtype) if grad.dtype != tensor.dtype else grad


def _differ(a: Any, b: Any) -> bool:
    """Compare without adding guards."""
    left = a.node.expr if isinstance(a, torch.SymInt) else a
    right = b.node.expr if isinstance(b, torch.SymInt) else b
    return bool(left != right)


# ---- an operator without a rule -----------------------------------------------------------------


@dataclass
class JointTrace:
    """Forward and gradient of one operator, traced together and split into what runs in forward and in backward."""

    traced: TracedFunction
    forward: list[fx.Node]
    backward: list[fx.Node]
    outputs: list[Any]
    differentiable: list[int]
    """Outputs that have a gradient."""
    inputs: list[int]
    """Operands that get a gradient, among the operator's tensor operands."""
    gradients: list[Any]
    """Gradients of `inputs`; None where there is none."""
    gradient_positions: list[int]

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
        """The outputs to which a gradient can come.

        Zeros are no substitute for none: eigenvectors without a gradient leave out a division by the
        differences of eigenvalues, with one of zeros it is 0 / 0.
        """
        values = node.meta["val"]
        values = values if isinstance(values, (tuple, list)) else [values]
        return [
            i
            for i, value in enumerate(values)
            if isinstance(value, Tensor) and value.is_floating_point() and _is_read(node, i)
        ]

    def placeholders(self) -> list[fx.Node]:
        """The placeholders that stand for the operands, then the others."""
        return self.traced.placeholders()

    def gradient_placeholders(self) -> list[fx.Node]:
        """The placeholders of the gradients of the differentiable outputs."""
        placeholders = self.traced.placeholders()
        return [placeholders[i] for i in self.gradient_positions]

    @staticmethod
    def of(node: fx.Node, flags: list[bool], trace: Callable[..., TracedFunction]) -> JointTrace:
        """Trace `node` with gradients for the operands whose flag is set."""
        operands = JointTrace.operands(node)
        numbers = [n for n in node.all_input_nodes if n not in operands]
        values = node.meta["val"]
        values = list(values) if isinstance(values, (tuple, list)) else [values]
        floats = JointTrace.read(node)
        inputs = [
            i
            for i, flag in enumerate(flags)
            if flag and operands[i].meta["val"].is_floating_point()
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


_DIFFERENTIABLE_FORMS: dict[Any, Callable[..., Any]] = {
    # What functionalization made of an operator in place, and autograd does not know.
    torch.ops.aten.copy.default: _copy,
    # Its backward takes no symbolic sizes.
    torch.ops.aten.affine_grid_generator.default: affine_grid_generator,
}


def joint_function(
    node: fx.Node,
    operands: list[fx.Node],
    numbers: list[fx.Node],
    inputs: list[int],
    floats: list[int],
    found: list[int],
) -> Callable[..., list[Any]]:
    """(operands, numbers, gradients) -> outputs and gradients of `inputs`; notes in `found` which outputs have one."""

    def function(*args: Any) -> list[Any]:
        given = dict(zip([*operands, *numbers], args, strict=False))
        grads = dict(zip(floats, args[len(given) :], strict=True))
        # On this thread, whose modes do the recording: autograd would hand the nodes of a GPU's
        # tensors to that device's thread.
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


def _split(
    traced: TracedFunction,
    output_count: int,
    found: list[int],
    inputs: list[int],
    positions: list[int],
) -> JointTrace:
    placeholders = traced.placeholders()
    late = {placeholders[i] for i in positions}
    forward: list[fx.Node] = []
    backward: list[fx.Node] = []
    for node in traced.calls():
        if any(operand in late for operand in node.all_input_nodes):
            late.add(node)
            backward.append(node)
        else:
            forward.append(node)
    outputs = traced.outputs()
    if any(out in late for out in outputs[:output_count]):
        raise CannotLower("an output of the forward depends on a gradient")
    return JointTrace(
        traced,
        forward,
        backward,
        outputs[:output_count],
        found,
        inputs,
        outputs[output_count:],
        positions,
    )
