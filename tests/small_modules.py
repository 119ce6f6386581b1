"""Small modules that show one thing each."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class ChangesInput(nn.Module):
    """Changes the data of an input that requires a gradient, which is left to eager PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(2, 2))

    def forward(self, x: Tensor) -> Tensor:
        x.data.mul_(2)
        return x @ self.w


def not_a_leaf() -> Tensor:
    """An input that may be changed in place."""
    return torch.ones(2, 2, requires_grad=True) * 1


class Dropping(nn.Module):
    """Dropout, batch statistics, a counter, an unused and a frozen parameter; loss in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 4)
        self.norm, self.drop = nn.BatchNorm1d(16), nn.Dropout(0.2)
        self.unused = nn.Parameter(torch.zeros(3))
        self.frozen = nn.Parameter(torch.ones(16), requires_grad=False)
        self.calls = 0
        self.seen: list[int] = []

    def forward(self, x: Tensor, target: Tensor | None = None) -> dict[str, Tensor]:
        self.calls += 1
        hidden = self.drop(torch.tanh(self.norm(self.first(x)) * self.frozen))
        scores = self.last(hidden)
        result = {"scores": scores}
        if target is not None:
            result["loss"] = nn.functional.cross_entropy(scores, target)
        return result


class Wrong(nn.Module):
    """Computes something else when it is compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        if torch.compiler.is_compiling():
            y = y * 1.01
        return self.b(y.tanh())


class Breaking(nn.Module):
    """Has a graph break."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.a(x)
        torch._dynamo.graph_break()
        return self.b(y).sum(), y


def everything(module: nn.Module) -> dict[str, object]:
    """What a check must leave as it is; tensors as copies, gradients with their identity."""
    state: dict[str, object] = {"rng": torch.get_rng_state().clone()}
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        state[name] = tensor.detach().clone()
        state[f"{name} itself"] = id(tensor)
        state[f"{name} version"] = tensor._version
        state[f"{name} grad"] = None if tensor.grad is None else tensor.grad.clone()
        state[f"{name} grad itself"] = id(tensor.grad)
    for name, part in module.named_modules():
        state[f"{name} mode"] = part.training
    for name in ("calls", "seen"):
        state[name] = getattr(module, name, None)
    return state


def assert_same(before: dict[str, object], after: dict[str, object]) -> None:
    """Bit for bit."""
    assert before.keys() == after.keys()
    for name, value in before.items():
        if isinstance(value, Tensor):
            other = after[name]
            assert isinstance(other, Tensor) and torch.equal(value, other), name
        else:
            assert value == after[name], name


def asserted(self: Any, x: Tensor) -> Any:
    """An assertion with a text that is computed, here as pytest rewrites those of test files."""
    assert x.min() > -50, f"at least {x.min()}"
    return self.fc(x)
