"""Hooks of tensors that call `torch.autograd.grad`, as equilibrium models write their backward pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.semantics import Calls, as_in_eager, assert_compiled


def _steps(model: Any) -> list[Tensor]:
    results = []
    for rows in (5, 3, 7):
        results.append(model(torch.randn(rows, 4)))
        results[-1].square().mean().backward()
    return results


def _fixed_point(m: Any, x: Tensor) -> Tensor:
    def step(z: Tensor) -> Tensor:
        return 0.5 * torch.tanh(m.fc(z) + x)

    z = torch.zeros_like(x)
    for _ in range(20):
        z = step(z).detach()
    z = step(z)
    start = z.clone().detach().requires_grad_()
    again = step(start)

    def solve(gradient: Tensor) -> Tensor:
        found = gradient
        for _ in range(10):
            (change,) = torch.autograd.grad(again, start, found, retain_graph=True)
            found = change + gradient
        return found

    z.register_hook(solve)
    return m.fc(z)


def test_a_fixed_point() -> None:
    report = as_in_eager(Calls(_fixed_point), _steps)
    assert_compiled(report, captures=3)


def _once(m: Any, x: Tensor) -> Tensor:
    z = m.fc(x)
    start = z.clone().detach().requires_grad_()
    again = torch.tanh(m.fc(start))

    def solve(gradient: Tensor) -> Tensor:
        product = torch.autograd.grad(again, start, gradient, retain_graph=True)[0]
        return torch.autograd.grad(again, start, product)[0] + gradient

    z.register_hook(solve)
    return torch.tanh(z)


def test_a_hook_that_frees_its_graph() -> None:
    assert_compiled(as_in_eager(Calls(_once), _steps), captures=3)
