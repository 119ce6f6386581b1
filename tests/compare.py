"""Comparing a module under ORTModule with eager PyTorch, by the error bound of the design."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

Step = Callable[[nn.Module], Tensor]


def gradients(module: nn.Module) -> dict[str, Tensor | None]:
    """Copies of all gradients by name."""
    return {
        name: None if p.grad is None else p.grad.detach().clone()
        for name, p in module.named_parameters()
    }


def to_double(value: Any) -> Any:
    """Floating tensors anywhere in `value` as float64."""
    if isinstance(value, Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, dict):
        return {key: to_double(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(to_double(item) for item in value)
    return value


def assert_gradients_close(
    ours: dict[str, Tensor | None],
    eager: dict[str, Tensor | None],
    exact: dict[str, Tensor | None],
    floor: float = 1e-4,
) -> None:
    """Each gradient's error against float64 is at most twice eager's, or `floor` of the largest."""
    largest = max((float(g.abs().max()) for g in exact.values() if g is not None), default=0.0)
    for name, reference in exact.items():
        mine, theirs = ours[name], eager[name]
        assert (mine is None) == (theirs is None), (
            f"{name}: {mine is None} but eager {theirs is None}"
        )
        if reference is None or mine is None or theirs is None or mine.numel() == 0:
            continue
        assert mine.dtype == theirs.dtype and mine.shape == theirs.shape, name
        error = float((mine.double() - reference).abs().max())
        allowed = max(2 * float((theirs.double() - reference).abs().max()), floor * largest)
        assert error <= allowed, f"{name}: error {error:.3g}, allowed {allowed:.3g}"


def exact_copy(module: nn.Module) -> nn.Module:
    """A float64 copy of an eager module."""
    return copy.deepcopy(module).double()
