"""`requires_grad_()` and `requires_grad = True` of values that forward computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ortmodule_py import ORTModule
from ortmodule_py.dynamo.patches.table import running_torch
from tests.semantics import QUIET, Calls, as_in_eager, assert_whole


class Frozen(nn.Module):
    """A frozen embedding, a layer that trains, and a function of both."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 4).requires_grad_(False)
        self.fc = nn.Linear(4, 4)
        self.function = function
        self.kept: Any = None

    def forward(self, tokens: Tensor) -> Any:
        return self.function(self, self.table(tokens))


def _trained(module: nn.Module, *inputs: Tensor) -> dict[str, Any]:
    def step(model: Any) -> list[Any]:
        results = []
        for x in inputs or (torch.arange(4), torch.arange(6)):
            y = model(x)
            parts = y if isinstance(y, tuple) else (y,)
            torch.stack([part.square().mean() for part in parts]).sum().backward()
            results.append((y, [part.grad for part in parts if part.is_leaf]))
        return results

    return as_in_eager(module, step)


def _called(self: Any, h: Tensor) -> Any:
    return self.fc(h.requires_grad_())


def _assigned(self: Any, h: Tensor) -> Any:
    h.requires_grad = True
    return self.fc(h)


def _checkpointed(self: Any, h: Tensor) -> Any:
    h.requires_grad = True
    return checkpoint(self.fc, h, use_reentrant=False) + self.fc(h)


def _detached(self: Any, h: Tensor) -> Any:
    return self.fc(self.fc(h).detach().requires_grad_())


def _off(self: Any, h: Tensor) -> Any:
    target = h * 2
    target.requires_grad = False
    return self.fc(h) - target


@pytest.mark.parametrize("function", [_called, _assigned, _checkpointed, _detached, _off])
def test_the_graph_stays_whole_where_nobody_sees_the_gradient(function: Any) -> None:
    report = _trained(Frozen(function))
    assert_whole(report)


def test_a_view_of_an_input_that_needs_no_gradient() -> None:
    def function(self: Any, x: Tensor) -> Any:
        x = x[:, None]
        x.requires_grad = True
        return self.fc(x)

    report = _trained(Calls(function), torch.ones(3, 4), torch.ones(5, 4))
    assert_whole(report)


def test_a_hook_of_a_frozen_layer_that_turns_gradients_on() -> None:
    """What `enable_input_require_grads` of transformers registers for PEFT with checkpoints."""
    module = Frozen(lambda self, h: checkpoint(self.fc, h, use_reentrant=False))
    module.table.register_forward_hook(lambda layer, given, result: result.requires_grad_(True))
    report = _trained(module)
    assert_whole(report)


def _returned(self: Any, h: Tensor) -> Any:
    h.requires_grad_()
    return self.fc(h), h


def _alone(self: Any, h: Tensor) -> Any:
    h.requires_grad = True
    return self.fc(h), h * 2


@pytest.mark.parametrize("function", [_returned, _alone])
def test_outputs_whose_gradient_ends_at_the_value_break_the_graph(function: Any) -> None:
    report = _trained(Frozen(function))
    (reason,) = report["graph_breaks"]
    assert "no other gradient" in str(reason) or running_torch() < (2, 13)


def test_a_value_that_an_attribute_keeps_has_its_gradient() -> None:
    def function(self: Any, h: Tensor) -> Any:
        self.kept = h.requires_grad_()
        return self.fc(h)

    def step(model: Any) -> Any:
        model(torch.arange(4)).square().sum().backward()
        return model.kept.grad

    as_in_eager(Frozen(function), step)


def test_the_assignment_to_a_value_that_is_no_leaf_is_eagers_error() -> None:
    def function(self: Any, h: Tensor) -> Any:
        h = self.fc(h)
        h.requires_grad = True
        return h

    for model in (Frozen(function), ORTModule(Frozen(function), QUIET)):
        with pytest.raises(RuntimeError, match="of leaf variables"):
            model(torch.arange(4))


def test_an_argument_that_forward_turns_on_is_named_as_such() -> None:
    def forces(self: Any, x: Tensor) -> Tensor:
        x.requires_grad_()
        (force,) = torch.autograd.grad(self.fc(x).square().sum(), x, create_graph=True)
        return force

    report = as_in_eager(Calls(forces), lambda model: model(torch.ones(2, 4)).sum())
    (reason,) = report["graph_breaks"]
    assert "changes a tensor from outside of forward" in reason
