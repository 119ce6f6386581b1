"""Buffers that forward replaces by others of the size of the batch, such as membranes of spiking neurons."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ortmodule_py import ORTModule
from ortmodule_py.dynamo.patches import changing_buffers
from tests.semantics import QUIET, as_in_eager, assert_whole


class Neuron(nn.Module):
    """As snntorch writes it: the membrane starts anew in each forward."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("membrane", torch.zeros(0), persistent=False)

    def reset(self) -> None:
        self.membrane = torch.zeros_like(self.membrane)

    def forward(self, x: Tensor) -> Tensor:
        if self.membrane.shape != x.shape:
            self.membrane = torch.zeros_like(x)
        self.membrane = 0.9 * self.membrane + x
        return torch.sigmoid(5 * (self.membrane - 1))


class Spiking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 3)
        self.neurons = nn.ModuleList([Neuron(), Neuron()])

    def forward(self, x: Tensor) -> Tensor:
        for neuron in self.neurons:
            neuron.reset()  # type: ignore[operator]
        spikes = []
        for _ in range(3):
            spikes.append(self.neurons[1](self.second(self.neurons[0](self.first(x)))))
        return torch.stack(spikes)


def _steps(model: Any) -> list[Tensor]:
    results = []
    for rows in (4, 3, 5, 7, 6, 9):
        results.append(model(torch.randn(rows, 4)))
        results[-1].square().mean().backward()
    return results


def test_membranes() -> None:
    assert_whole(as_in_eager(Spiking(), _steps), captures=4)


class _Shifted(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(4, width)
        self.register_buffer("shift", torch.arange(float(width)))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.shift


class _Widths(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([_Shifted(width) for width in (2, 3, 5)])

    def forward(self, x: Tensor) -> Tensor:
        parts = []
        for layer in self.layers:
            torch._dynamo.graph_break()
            parts.append(layer(x))
        return torch.cat(parts, 1)


def test_buffers_of_other_layers_stay_constants() -> None:
    """Layers of one class and several widths have captures of their own; none has changed its buffer."""
    model = _Widths()
    as_in_eager(model, _steps)
    sizes = [found["shift"] for found in changing_buffers._seen.values() if "shift" in found]
    assert not any(found.changed for found in sizes)


class _Placed(nn.Module):
    """As models of transformers move a table; `to` returns the buffer itself."""

    def __init__(self, persistent: bool) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.positions = nn.Buffer(torch.linspace(-1, 1, 40).view(10, 4), persistent=persistent)

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        self.positions = self.positions.to(dtype=y.dtype)
        return y + self.positions[: len(x)]


@pytest.mark.parametrize("persistent", [True, False])
def test_a_buffer_object_is_assigned(persistent: bool) -> None:
    module = _Placed(persistent)
    assert_whole(as_in_eager(module, _steps))
    model = ORTModule(module, QUIET)
    model(torch.ones(2, 4))
    assert ("positions" in model.state_dict()) == persistent
