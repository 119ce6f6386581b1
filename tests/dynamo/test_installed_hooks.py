"""Hooks that a model installs in its first call, as those of transformers that return hidden states."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor, nn

from tests.semantics import as_in_eager, assert_compiled

_lock = threading.Lock()


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.installed = False
        self.states: list[Tensor] = []

    def forward(self, x: Tensor) -> Any:
        maybe_install_capturing_hooks(self)
        self.states.clear()
        for layer in self.layers:
            x = layer(x).tanh()
        return x, tuple(self.states)


def maybe_install_capturing_hooks(model: _Model) -> None:
    if not model.installed:
        with _lock:
            for layer in model.layers:
                layer.register_forward_hook(lambda _, args, result: model.states.append(result))
            model.installed = True


def test_the_first_call_is_captured() -> None:
    def step(model: Any) -> list[Any]:
        results = []
        for rows in (3, 4, 5):
            y, states = model(torch.linspace(-1, 1, 4 * rows).view(rows, 4))
            (y.square().sum() + sum(state.sum() for state in states)).backward()
            results.append((y, states))
        return results

    report = as_in_eager(_Model(), step)
    assert_compiled(report, captures=2)
    assert not report["graph_breaks"]
