"""A user's backward (of an `autograd.Function`, or a tensor hook) as a function to trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ortmodule_py.base.changing_numbers import changes, is_same
from ortmodule_py.base.errors import CannotLower
from ortmodule_py.trace.record import is_changed, is_traced, may_require_gradient


@dataclass
class GradientBody:
    """A user's backward as a function of (gradients of the differentiable outputs, saved values)."""

    function: Callable[..., list[Any]]
    patterns: list[Any]
    """Example arguments of `function`."""
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
        """`run` takes the gradients of all outputs, then saved values; `inputs` are (index of its result, input)."""
        count = len(differentiable)

        def function(*args: Any) -> list[Any]:
            given = dict(zip(differentiable, args[:count], strict=True))
            grads = [given[i] if i in given else _zeros_like(out) for i, out in enumerate(outs)]
            results = run([*grads, *args[count:]])
            results = results if isinstance(results, (tuple, list)) else [results]
            return [_like_input(results[position], tensor) for position, tensor in inputs]

        patterns = [outs[i] for i in differentiable] + list(saved)
        tensors = [i for i in range(count, len(patterns)) if isinstance(patterns[i], Tensor)]
        numbers = [i for i in range(count, len(patterns)) if changes(patterns[i])]
        return GradientBody(function, patterns, tensors, numbers)


def _zeros_like(out: Any) -> Any:
    """Autograd passes zeros for outputs without a gradient."""
    if not isinstance(out, Tensor):
        return None
    return torch.zeros(out.shape, dtype=out.dtype, device=out.device)


def _like_input(grad: Any, tensor: Tensor) -> Any:
    """The gradient in shape and dtype of its input, as autograd makes it; None for integer inputs."""
    if not isinstance(grad, Tensor) or not may_require_gradient(tensor):
        return None
    if grad.dim() != tensor.dim() or any(
        not is_same(a, b) for a, b in zip(grad.shape, tensor.shape, strict=True)
    ):
        grad = grad.sum_to_size(tensor.shape)
    return grad.to(tensor.dtype) if grad.dtype != tensor.dtype else grad


def refuse_changes(arguments: Sequence[Any], seen_elsewhere: Sequence[bool]) -> None:
    """Raise if a backward mutates a value that is used elsewhere: its trace is separate."""
    for value, seen in zip(arguments, seen_elsewhere, strict=True):
        if seen and is_traced(value) and is_changed(value):
            raise CannotLower(
                "an autograd.Function whose backward changes a gradient, input or output in place"
            )
