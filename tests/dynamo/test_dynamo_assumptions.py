"""Objects of the user's that change at every call, which Dynamo takes for what they were at the capture."""

from __future__ import annotations

import collections
import logging
import random
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.semantics import Calls, as_in_eager, assert_compiled, original


def _outputs(model: Any, count: int = 6) -> list[Tensor]:
    return [model(torch.ones(3, 4)) for _ in range(count)]


_generator = random.Random(3)


def _own(self: Any, x: Tensor) -> Tensor:
    result: Tensor = self.fc(x).tanh() * self.draws.random()
    return result + self.draws.randint(1, 9)


def _global(self: Any, x: Tensor) -> Tensor:
    result: Tensor = self.fc(x).tanh() * _generator.uniform(1, 2)
    return result


def _branch(self: Any, x: Tensor) -> Tensor:
    result: Tensor = self.fc(x)
    return result.tanh() if self.draws.random() < 0.5 else result.exp()


def _shuffled(self: Any, x: Tensor) -> Tensor:
    factors = [1.0, 2.0, 3.0, 4.0]
    self.draws.shuffle(factors)
    result: Tensor = self.fc(x) * factors[0]
    return result


@pytest.mark.parametrize("forward", [_own, _global, _branch, _shuffled])
def test_a_generator_of_python_draws_anew(forward: Any) -> None:
    def step(model: Any) -> Any:
        _generator.seed(3)
        return [_outputs(model), original(model).draws.random(), _generator.random()]

    report = as_in_eager(Calls(forward, draws=random.Random(0)), step)
    if forward is not _shuffled:  # whose break is in front of all calls of torch
        assert any("random.Random" in reason for reason in report["graph_breaks"])


def test_a_generator_that_forward_makes_stays_in_the_graph() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        result: Tensor = self.fc(x) * random.Random(5).random()
        return result

    assert_compiled(as_in_eager(Calls(forward), _outputs))


def _of_last(self: Any, x: Tensor) -> Tensor:
    self.seen.append(len(self.seen) + 1.0)
    result: Tensor = self.fc(x) * sum(self.seen)
    return result


def test_a_limited_deque_drops_what_is_too_much() -> None:
    report = as_in_eager(
        Calls(_of_last, seen=collections.deque(maxlen=3)),
        lambda model: [_outputs(model), list(model.seen)],
    )
    assert any("deque" in str(piece) for piece in report["eager_pieces"])


def test_a_deque_gets_a_limit_later() -> None:
    def step(model: Any) -> Any:
        found = _outputs(model)
        for limit in (7, 4):
            model.seen = collections.deque(model.seen, maxlen=limit)
            found += _outputs(model, 3)
        return [found, list(model.seen)]

    as_in_eager(Calls(_of_last, seen=collections.deque()), step)


def test_reading_a_limited_deque_stays_in_the_graph() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        result: Tensor = self.fc(x) * sum(self.seen) * self.seen.maxlen
        return result

    module = Calls(forward, seen=collections.deque([1.0, 2.0], maxlen=3))
    assert_compiled(as_in_eager(module, _outputs))


_scaling = logging.getLogger("tests.of_a_model_that_asks")


def _asking(self: Any, x: Tensor) -> Tensor:
    result: Tensor = self.fc(x)
    if _scaling.isEnabledFor(logging.INFO):
        result = result * 2
    return result


def test_a_logger_is_asked_for_its_level() -> None:
    def step(model: Any) -> list[Tensor]:
        found = []
        for level in (logging.INFO, logging.ERROR, logging.INFO):
            _scaling.setLevel(level)  # which empties the logger's own memory, too
            found += _outputs(model, 2)
        logging.disable(logging.CRITICAL)
        try:
            return [*found, *_outputs(model, 2)]
        finally:
            logging.disable(logging.NOTSET)

    as_in_eager(Calls(_asking), step)
