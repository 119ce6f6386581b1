"""Parameters and buffers that change between calls, and the layouts that they have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from tests.semantics import Calls, as_in_eager, assert_compiled, original


def _tanh(self: Any, x: Tensor) -> Tensor:
    return self.fc(x).tanh()


def _two_layers(self: Any, x: Tensor) -> Tensor:
    return self.last(self.fc(x).tanh())


def _step(model: Any, dtype: torch.dtype = torch.float32) -> Tensor:
    y: Tensor = model(torch.ones(3, 4, dtype=dtype))
    y.sum().backward()
    return y


def test_freezing_and_thawing() -> None:
    def step(model: Any) -> Any:
        found = []
        for trains in (True, False, True):
            model.fc.weight.requires_grad_(trains)
            model.zero_grad()
            _step(model)
            found += [model.fc.weight.grad, model.fc.bias.grad]
        return found

    report = as_in_eager(Calls(_tanh, unused=nn.Parameter(torch.ones(2))), step)
    assert_compiled(report, captures=2)


def test_everything_frozen() -> None:
    def step(model: Any) -> Any:
        model.requires_grad_(False)
        return model(torch.ones(3, 4))

    assert_compiled(as_in_eager(Calls(_tanh), step))


def _tied() -> nn.Module:
    module = Calls(_two_layers, last=nn.Linear(4, 4))
    module.last.weight = module.fc.weight
    return module


def test_tied_weights_and_untying_them() -> None:
    def step(model: Any) -> Any:
        found = [_step(model)]
        original(model).last.weight = nn.Parameter(torch.full((4, 4), 0.1))
        model.zero_grad()
        return [*found, _step(model)]

    assert_compiled(as_in_eager(_tied(), step), captures=2)


def test_replaced_cast_and_loaded_parameters() -> None:
    def step(model: Any) -> Any:
        found = [_step(model)]
        original(model).fc.weight = nn.Parameter(torch.full((4, 4), 0.1))
        found.append(_step(model))
        model.load_state_dict({k: torch.full_like(v, 0.2) for k, v in model.state_dict().items()})
        found.append(_step(model))
        state = {k: torch.full_like(v, 0.3) for k, v in model.state_dict().items()}
        model.load_state_dict(state, assign=True)
        found.append(_step(model))
        model.fc.weight.data = torch.full((4, 4), 0.4)
        found.append(_step(model))
        model.zero_grad()
        model.double()
        found.append(_step(model, torch.float64))
        model.fc = nn.Linear(4, 2, dtype=torch.float64)
        found.append(_step(model, torch.float64).shape)
        return found

    assert as_in_eager(Calls(_tanh), step)["compiled"]


def _convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 4, 3),
    )  # fmt: skip


def test_channels_last_weights() -> None:
    def step(model: Any) -> Any:
        x = torch.randn(2, 3, 8, 8)
        found = [model(x)]
        found[0].sum().backward()
        model.zero_grad()
        model.to(memory_format=torch.channels_last)
        for given in (x, x.to(memory_format=torch.channels_last)):
            found.append(model(given))
            found[-1].square().sum().backward()
        return found

    assert_compiled(as_in_eager(_convolutions(), step), captures=3)


def test_buffers_are_updated() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        self.mean = self.mean * 0.9 + x.mean(0) * 0.1
        self.count += 1
        self.total.add_(x.sum())
        return self.fc(x) * self.mean / self.count

    module = Calls(forward)
    module.register_buffer("mean", torch.zeros(4))
    module.register_buffer("count", torch.zeros((), dtype=torch.long))
    module.register_buffer("total", torch.zeros(()))

    def step(model: Any) -> Any:
        found = []
        for i in range(4):
            y = model(torch.full((3, 4), float(i)))
            y.sum().backward()
            found += [y, model.total.clone()]
        return found

    assert_compiled(as_in_eager(module, step))


def _change_weight(model: Any, y: Tensor) -> None:
    with torch.no_grad():
        model.last.weight.add_(1)


def _optimizer_step(model: Any, y: Tensor) -> None:
    y.sum().backward(retain_graph=True)
    torch.optim.SGD(model.parameters(), lr=0.1).step()


def _change_output(model: Any, y: Tensor) -> None:
    y.mul_(2)


@pytest.mark.parametrize("change", [_change_weight, _optimizer_step, _change_output])
def test_a_change_between_forward_and_backward(change: Callable[[Any, Tensor], None]) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        y = self.last(self.fc(x).tanh())
        return y.sigmoid() if change is _change_output else y

    def step(model: Any) -> Any:
        y = model(torch.ones(3, 4))
        change(model, y)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()
        model.zero_grad()
        return _step(model)

    as_in_eager(Calls(forward, last=nn.Linear(4, 4)), step)


def test_a_change_that_does_no_harm() -> None:
    def step(model: Any) -> Any:
        y = model(torch.ones(3, 4))
        y.mul_(2)
        with torch.no_grad():
            model.fc.bias.add_(1)
        y.sum().backward()
        return y

    assert_compiled(as_in_eager(Calls(lambda self, x: self.fc(x)), step))


@pytest.mark.parametrize(
    "parametrized",
    [parametrizations.weight_norm, parametrizations.spectral_norm, parametrizations.orthogonal],
)
def test_parametrizations(parametrized: Callable[[nn.Module], nn.Module]) -> None:
    torch.manual_seed(0)

    def step(model: Any) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        found = []
        for _ in range(3):
            optimizer.zero_grad()
            found.append(_step(model))
            optimizer.step()
        model.eval()
        return [*found, model(torch.ones(3, 4)).detach()]

    assert_compiled(as_in_eager(nn.Sequential(parametrized(nn.Linear(4, 4))), step), captures=2)


def test_gradients_accumulate_into_the_same_tensor() -> None:
    def step(model: Any) -> Any:
        _step(model)
        weight = model.fc.weight.grad
        _step(model)
        model.zero_grad(set_to_none=False)
        _step(model)
        assert model.fc.weight.grad is weight

    assert_compiled(as_in_eager(Calls(_tanh), step))


def test_functional_call() -> None:
    def step(model: Any) -> Any:
        given = {n: torch.ones_like(p).requires_grad_() for n, p in model.named_parameters()}
        y = torch.func.functional_call(model, given, (torch.full((3, 4), 0.1),))
        y.sum().backward()
        return [y, *(value.grad for value in given.values())]

    assert_compiled(as_in_eager(Calls(_tanh), step))
