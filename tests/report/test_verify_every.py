"""ORTMODULE_VERIFY_EVERY: the live model is compared with eager PyTorch, and goes on as without."""

from __future__ import annotations

import copy
import random
from collections import OrderedDict, UserDict, defaultdict, deque
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ortmodule_py import ORTModule, ORTModuleError
from tests.small_modules import ChangesInput, Dropping, Wrong, assert_same, everything, not_a_leaf

from .test_check import dropping_batch


def steps(model: nn.Module, count: int) -> list[float]:
    """A short training, two forwards before each backward."""
    torch.manual_seed(3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    losses = []
    x, target = dropping_batch()
    for _ in range(count):
        optimizer.zero_grad()
        first, second = (model(x, target)["loss"] for _ in range(2))
        (first + second).backward()
        optimizer.step()
        losses.append(float(first.detach()))
    return losses


@pytest.mark.slow
def test_training_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    module = Dropping()
    states, losses = [], []
    for every in ("0", "3"):
        monkeypatch.setenv("ORTMODULE_VERIFY_EVERY", every)
        model = ORTModule(copy.deepcopy(module))
        losses.append(steps(model, 4))
        state = everything(model.module)
        states.append({k: v for k, v in state.items() if not k.endswith("itself")})
    assert losses[0] == losses[1]
    assert_same(*states)


def test_state_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_VERIFY_EVERY", "1")
    torch.manual_seed(0)
    x, target = dropping_batch()
    model = ORTModule(Dropping())
    model(x, target)["loss"].backward()
    before = everything(model.module)
    model._verifier.before_forward((x, target), {})
    assert_same(before, everything(model.module))


def test_a_difference_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_VERIFY_EVERY", "2")
    torch.manual_seed(0)
    model, x = ORTModule(Wrong()), torch.randn(3, 4)
    model(x).sum().backward()
    with torch.no_grad():
        model(x)
    message = r"^\[ORTMODULE_VERIFY_EVERY\] .* at training forward 2: gradient [ab]\.\w+: error .* "
    with pytest.raises(ORTModuleError, match=message + r"the worst gradient is that of [ab]\.\w+"):
        model(x)
    before: Tensor = model.module.a.weight.grad
    model(x).sum().backward()
    assert model.module.a.weight.grad is before


def test_an_input_that_is_changed_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_VERIFY_EVERY", "1")
    model, x = ORTModule(ChangesInput()), not_a_leaf()
    model(x).sum().backward()
    assert torch.equal(x, torch.full((2, 2), 2.0))


class Summed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, items: Mapping[str, Tensor]) -> Tensor:
        y: Tensor = self.fc(items["x"]).sum()
        return y


@pytest.mark.parametrize("kind", [dict, lambda items: defaultdict(list, items), UserDict])
def test_batches_of_other_dictionaries(
    kind: Callable[[dict[str, Tensor]], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORTMODULE_VERIFY_EVERY", "1")
    model = ORTModule(Summed())
    model(kind({"x": torch.ones(2, 4)})).backward()


class Record:
    """Neither a module nor a container."""

    def __init__(self) -> None:
        self.calls = 0
        self.names: list[str] = []


class Remembers(nn.Module):
    """Forward leaves something in whatever can hold it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.history: dict[str, list[float]] = {"sums": []}
        self.order: OrderedDict[int, int] = OrderedDict()
        self.last: deque[int] = deque(maxlen=2)
        self.record = Record()
        self.generator = torch.Generator()
        self.numbers = random.Random(0)

    def forward(self, x: Tensor) -> Tensor:
        self.history["sums"].append(1.0)
        self.order[len(self.order)] = 1
        self.last.append(len(self.order))
        self.record.calls += 1
        self.record.names.append("forward")
        noise = torch.rand(1, generator=self.generator) * self.numbers.random()
        y: Tensor = self.fc(x * (noise + self.record.calls)).sum()
        return y


def test_what_attributes_hold_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    module = Remembers()
    eager = copy.deepcopy(module)
    monkeypatch.setenv("ORTMODULE_VERIFY_EVERY", "1")
    model = ORTModule(module)
    for step in range(3):
        x = torch.full((2, 4), float(step + 1))
        got, want = model(x), eager(x)
        torch.testing.assert_close(got, want)
        got.backward()
        assert module.history == eager.history and module.order == eager.order
        assert module.last == eager.last and vars(module.record) == vars(eager.record)
    assert torch.equal(module.generator.get_state(), eager.generator.get_state())
    assert module.numbers.getstate() == eager.numbers.getstate()
