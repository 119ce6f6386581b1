"""`.data` of parameters and buffers that forward sets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ortmodule_py.dynamo.patches.table import running_torch
from tests.semantics import as_in_eager, assert_whole


class Averaged(nn.Module):
    """A layer, a copy that follows it, and a buffer."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.copy = nn.Linear(4, 4).requires_grad_(False)
        self.register_buffer("mean", torch.zeros(4))
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def _follow(self: Any, x: Tensor) -> Tensor:
    for own, followed in zip(self.copy.parameters(), self.fc.parameters()):  # noqa: B905
        own.data = own.data * 0.9 + followed.data * 0.1
    y: Tensor = self.fc(x) * self.copy(x)
    return y


def _of_value(self: Any, x: Tensor) -> Tensor:
    y: Tensor = self.fc(x)
    self.mean.data = self.mean * 0.9 + y.mean(0) * 0.1
    return y - self.mean


def _twice(self: Any, x: Tensor) -> Tensor:
    before = self.mean * 2
    self.mean.data = self.mean + 1
    between = self.mean * 2
    self.mean.data = self.mean * 3
    self.mean.mul_(2)
    return self.fc(x) * self.mean + before + between


def _of_other_size(self: Any, x: Tensor) -> Tensor:
    self.mean.data = x.detach().sum(1)
    return self.fc(x) + self.mean.sum()


def _trained(function: Callable[..., Any], rows: Callable[[int], int] = lambda i: 3) -> Any:
    def step(model: Any) -> list[Tensor]:
        results = []
        for i in range(3):
            y = model(torch.linspace(-1, 1, rows(i) * 4).view(-1, 4) + i)
            y.square().sum().backward()
            results.append(y)
        return [*results, *(p.detach() for p in model.copy.parameters())]

    return as_in_eager(Averaged(function), step)


@pytest.mark.parametrize("function", [_follow, _of_value, _twice])
def test_the_piece_stays_in_the_engine(function: Any) -> None:
    assert_whole(_trained(function))


def test_other_sizes() -> None:
    assert_whole(_trained(_of_other_size, lambda i: 3 + i), 3)


def test_tensors_that_share_the_old_memory_keep_it() -> None:
    def step(model: Any) -> list[Tensor]:
        shared = model.mean.detach()
        model(torch.ones(3, 4)).sum().backward()
        return [shared, model.mean]

    assert_whole(as_in_eager(Averaged(_of_value), step))


def test_a_view_of_another_argument_is_left_to_eager() -> None:
    def function(self: Any, x: Tensor) -> Tensor:
        self.mean.data = x.detach()[0]
        return self.fc(x) + self.mean

    def step(model: Any) -> list[Tensor]:
        x = torch.ones(3, 4)
        model(x).sum().backward()
        x.mul_(2)
        return [model.mean]

    assert not as_in_eager(Averaged(function), step)["compiled"]


def _max_norm(self: Any, x: Tensor) -> Tensor:
    """A constraint, as EEGNet has it."""
    weight = self.fc.weight
    weight.data = torch.renorm(weight.data, p=2, dim=0, maxnorm=0.5)
    y: Tensor = self.fc(x).tanh()
    return y


def _halved_twice(self: Any, x: Tensor) -> Tensor:
    weight = self.fc.weight
    with torch.no_grad():
        weight.data = weight.data * 0.5
        size = weight.norm()
    weight.data = weight.data + size
    y: Tensor = self.fc(x).tanh()
    return y


def _moved(self: Any, x: Tensor) -> Tensor:
    """As losses of pytorch_metric_learning have it."""
    self.fc.weight.data = self.fc.weight.data.to(x.device)
    y: Tensor = self.fc(x).tanh()
    return y


@pytest.mark.parametrize("level", ["0", "2"])
@pytest.mark.parametrize("function", [_max_norm, _halved_twice, _moved])
def test_of_a_parameter_that_trains(
    function: Any, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its gradient is that of the new data; backward may compute the value again from the old."""
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_LEVEL", level)
    assert_whole(_trained(function))


def _layer_moved(self: Any, x: Tensor) -> Tensor:
    """As mixtures of experts move those that are in use to the device."""
    self.fc.to(x.device).float()
    y: Tensor = self.fc(x).tanh()
    return y


def test_a_layer_that_is_where_it_moves_to() -> None:
    """With and without gradients, which it would move, too, are two captures.

    From 2.14 on Dynamo hides that it is the same tensor: the layer stays in eager.
    """
    report = _trained(_layer_moved)
    if running_torch() < (2, 14):
        assert_whole(report, captures=2)


def _in_eager(self: Any, x: Tensor) -> Tensor:
    """No graph holds `rrelu`."""
    self.fc.weight.data = self.fc.weight.data * 0.5
    y: Tensor = torch.nn.functional.rrelu(self.fc(x), training=True)
    return y


def test_a_piece_that_eager_runs_has_the_same_gradient() -> None:
    assert not _trained(_in_eager)["compiled"]


def _behind_its_use(self: Any, x: Tensor) -> Tensor:
    """Backward reads the new data in eager PyTorch."""
    y: Tensor = self.fc(self.fc(x).tanh())
    self.fc.weight.data = self.fc.weight.data * 0.5
    return y


def _used_between(self: Any, x: Tensor) -> Tensor:
    self.fc.weight.data = self.fc.weight.data * 0.5
    y: Tensor = self.fc(self.fc(x).tanh())
    self.fc.weight.data = self.fc.weight.data * 0.5
    return y


def _then_in_place(self: Any, x: Tensor) -> Tensor:
    self.fc.weight.data = self.fc.weight.data * 0.5
    self.fc.weight.data.mul_(0.5)
    y: Tensor = self.fc(x)
    return y


@pytest.mark.parametrize("function", [_behind_its_use, _used_between, _then_in_place])
def test_what_backward_would_see_is_left_to_eager(function: Any) -> None:
    assert not _trained(function)["compiled"]
