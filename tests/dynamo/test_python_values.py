"""Python values that change from call to call: random numbers, counters, floats, switches."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ortmodule_py import ORTModule, last_run_report
from tests.semantics import QUIET, Calls, as_in_eager, assert_compiled, assert_whole


def _many(model: Any, count: int = 12) -> list[Tensor]:
    found = []
    for _ in range(count):
        y = model(torch.ones(3, 4))
        y.sum().backward()
        found.append(y)
    return found


def test_random_numbers_of_python() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        return self.fc(x) * random.random() + random.uniform(-1, 1)

    report = as_in_eager(Calls(forward), _many)
    assert report["captures"] <= 3


def _mixed(self: Any, x: Tensor) -> Tensor:
    share = random.uniform(0.1, 0.9)
    y: Tensor = self.fc(x) * share + x * (1 - share)
    return y / (2 * share + 1) ** 2


def _greatest(self: Any, x: Tensor) -> Tensor:
    share = random.random()
    y: Tensor = self.fc(x) * max(share, 1 - share)
    return y * -(random.randint(1, 4) + 1)


@pytest.mark.parametrize("forward", [_mixed, _greatest])
def test_arithmetic_on_random_numbers_of_python(forward: Any) -> None:
    assert_whole(as_in_eager(Calls(forward), _many))


def _in_double(self: Any, x: Tensor) -> Tensor:
    share = random.uniform(0.1, 0.9)
    y: Tensor = self.fc(x) * share + x * (1 - share) / 3
    return y + torch.full((4,), random.random(), dtype=torch.float64) * y.sum() * random.random()


def _in_both(self: Any, x: Tensor) -> Tensor:
    """What is float32 stays float32."""
    share = random.random()
    y = self.fc(x).float().mean() * share
    return self.fc(x) + (y + torch.tensor(1 - share)).double()


@pytest.mark.parametrize(("forward", "tolerance"), [(_in_double, 1e-14), (_in_both, 1e-6)])
def test_random_numbers_in_double(forward: Any, tolerance: float) -> None:
    torch._dynamo.reset()
    model = ORTModule(Calls(forward).double(), QUIET)
    for step in range(3):
        x = torch.linspace(-1, 1, 12, dtype=torch.float64).view(3, 4) + step
        found = []
        for run in (model, model.module):
            random.seed(step)
            found.append(run(x))
        torch.testing.assert_close(*found, rtol=tolerance, atol=tolerance)
    assert_whole(dict(last_run_report(model)))


def _noise(self: Any, x: Tensor) -> Tensor:
    y: Tensor = self.fc(x) + torch.from_numpy(np.random.randn(4)).float()
    return y * float(np.random.beta(0.4, 0.4))


def _seeded_noise(self: Any, x: Tensor) -> Tensor:
    np.random.seed(3)
    result: Tensor = self.fc(x) + torch.from_numpy(np.random.randn(4)).float()
    return result


@pytest.mark.parametrize("forward", [_noise, _seeded_noise])
def test_random_numbers_of_numpy(forward: Callable[..., Tensor]) -> None:
    def step(model: Any) -> Any:
        np.random.seed(0)
        return [_many(model), np.random.rand()]

    report = as_in_eager(Calls(forward), step)
    assert report["graph_breaks"] or forward is not _noise
    for reason in report["graph_breaks"]:
        assert "numpy" in reason and "test_python_values.py:" in reason


def test_layers_dropped_by_chance() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        for layer in self.layers:
            if random.random() < 0.5:
                x = layer(x)
        return x + self.fc(x)

    layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
    report = as_in_eager(Calls(forward, layers=layers), _many)
    assert report["compiled"] or report["eager_pieces"]


def test_a_counter() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        self.calls += 1
        return self.fc(x) * self.calls if self.calls % 100 else x

    def step(model: Any) -> Any:
        return [_many(model, 40), model.calls]

    assert_compiled(as_in_eager(Calls(forward, calls=0), step), captures=5)


def test_a_switch() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        return self.fc(x) if self.on else self.fc(x).tanh()

    def step(model: Any) -> Any:
        found = []
        for i in range(8):
            model.on = i % 2 == 0
            found += _many(model, 1)
        return found

    assert_compiled(as_in_eager(Calls(forward, on=True), step), captures=2)


USES: dict[str, Callable[[Tensor, float], Tensor]] = {
    "factor": lambda y, t: y * t + t,
    "temperature": lambda y, t: F.softmax(y / t, -1),
    "schedule": lambda y, t: y * (2 - t) * t**0.5,
    "threshold": lambda y, t: y * 2 if t > -1 else y,
}


def test_an_attribute_that_changes_every_step() -> None:
    """Arguments that change are tested in test_changing_floats.py."""

    def forward(self: Any, x: Tensor) -> list[Tensor]:
        y = self.fc(x)
        return [use(y, self.number) for use in USES.values()]

    def step(model: Any) -> Any:
        found = []
        for i in range(30):
            model.number = 0.25 + 0.06 * i
            results = model(torch.ones(3, 4))
            sum(y.sum() for y in results).backward()
            found.append(results)
        return found

    assert_compiled(as_in_eager(Calls(forward, number=0.5), step), captures=2)


def test_the_module_of_a_class() -> None:
    """As libraries ask whether a weight is quantized."""

    def forward(self: Any, x: Tensor) -> Tensor:
        y: Tensor = self.fc(x)
        return y if "quantized" in type(self.fc.weight).__module__ else y * 2

    assert_compiled(as_in_eager(Calls(forward), _many))
