"""Objects of the user's that change at every call, which Dynamo takes for what they were at the capture."""

from __future__ import annotations

import collections
import functools
import logging
import os
import random
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ortmodule_py.dynamo.patches.table import running_torch
from tests.semantics import Calls, as_in_eager, assert_compiled, original


def _outputs(model: Any, count: int = 6) -> list[Tensor]:
    return [model(torch.ones(3, 4)) for _ in range(count)]


NEEDS_ROWS_OF_2_13 = pytest.mark.skipif(
    running_torch() < (2, 13), reason="the rows that guard this are for torch 2.13 and later"
)
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


def test_numbers_of_random_stay_in_the_graph() -> None:
    draw = random.random  # as by `from random import random`

    def forward(self: Any, x: Tensor) -> Tensor:
        result: Tensor = self.fc(x * draw()) * random.random() + random.uniform(1, 2)
        return result

    report = as_in_eager(Calls(forward), _outputs)
    assert_compiled(report)
    assert report["graph_breaks"] == []


def test_a_number_of_random_is_not_rounded_to_16_bits() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        result: Tensor = self.fc(x) * random.uniform(1, 2)
        return result

    module = Calls(forward)
    torch.set_default_dtype(torch.bfloat16)
    try:
        report = as_in_eager(module, lambda model: model(torch.ones(3, 4, dtype=torch.float32)))
    finally:
        torch.set_default_dtype(torch.float32)
    assert any("number of random" in reason for reason in report["graph_breaks"]), report


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


# ---- state that Dynamo reads at the capture ------------------------------------------------------

_helpers = types.ModuleType("helpers")
_partial = functools.partial(torch.mul)


def _with_attribute(x: Tensor) -> Tensor:
    return x * getattr(_with_attribute, "factor", 1)


def _in_try(x: Tensor) -> Tensor:
    try:
        factor: float = _in_try.factor  # type: ignore[attr-defined]
    except AttributeError:
        return x
    return x * factor


def _in_dict(x: Tensor) -> Tensor:
    return x * _in_dict.__dict__.get("factor", 1)


def _asks_first(x: Tensor) -> Tensor:
    return x * 3 if hasattr(_asks_first, "factor") else x


def _of_module(x: Tensor) -> Tensor:
    return x * getattr(_helpers, "factor", 1)


def _of_partial(x: Tensor) -> Tensor:
    return x * getattr(_partial, "factor", 1)


class _Scale:
    def of(self, x: Tensor) -> Tensor:
        return x * getattr(_Scale.of, "factor", 1)


HOLDERS: dict[str, tuple[Callable[[Tensor], Tensor], Any]] = {
    "function": (_with_attribute, _with_attribute),
    "try": (_in_try, _in_try),
    "__dict__": (_in_dict, _in_dict),
    "hasattr": (_asks_first, _asks_first),
    "Python module": (_of_module, _helpers),
    "partial": (_of_partial, _partial),
    "method": (_Scale().of, _Scale.of),
}


@NEEDS_ROWS_OF_2_13
def test_an_attribute_appears_after_the_capture() -> None:
    """On one holder after the other; then another value of all."""

    def step(model: Any) -> list[Any]:
        for _, holder in HOLDERS.values():
            vars(holder).pop("factor", None)
        found = _outputs(model, 2)
        for _, holder in HOLDERS.values():
            holder.factor = 2
            found += _outputs(model, 1)
        for _, holder in HOLDERS.values():
            holder.factor = 3
        return found + _outputs(model, 1)

    def forward(self: Any, x: Tensor) -> list[Tensor]:
        y = self.fc(x)
        return [use(y) for use, _ in HOLDERS.values()]

    assert_compiled(as_in_eager(Calls(forward), step), 2 + len(HOLDERS))


def _counts_itself(self: Any, x: Tensor) -> Tensor:
    y: Tensor = self.fc(x)
    _counts_itself.calls = getattr(_counts_itself, "calls", 0) + 1  # type: ignore[attr-defined]
    return y * _counts_itself.calls  # type: ignore[attr-defined]


@NEEDS_ROWS_OF_2_13
def test_a_counter_in_an_attribute_of_a_function() -> None:
    def step(model: Any) -> list[Tensor]:
        vars(_counts_itself).pop("calls", None)
        return _outputs(model, 8)

    report = as_in_eager(Calls(_counts_itself), step)
    # Torch 2.14 captures the assignment, for each value of the counter.
    breaks = any("test_dynamo_assumptions.py:" in reason for reason in report["graph_breaks"])
    assert breaks == (running_torch() < (2, 14))


HIDING: dict[str, Callable[[nn.Module], dict[str, Any]]] = {
    "submodule": lambda module: {"fc": torch.exp},
    "parameter": lambda module: {"scale": torch.full((4,), 3.0)},
    "buffer": lambda module: {"shift": torch.full((4,), 5.0)},
}


@pytest.mark.parametrize("name", HIDING)
def test_an_attribute_hides_what_a_module_registered(name: str) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        result: Tensor = self.fc(x) * self.scale + self.shift
        return result

    def step(model: Any) -> list[Tensor]:
        found = _outputs(model, 2)
        vars(original(model)).update(HIDING[name](original(model)))
        return found + _outputs(model, 2)

    module = Calls(forward, scale=nn.Parameter(torch.ones(4)))
    module.register_buffer("shift", torch.ones(4))
    assert_compiled(as_in_eager(module, step), 2)


def _item() -> str | None:
    try:
        return os.environ["ORTM_TEST_FACTOR"]
    except KeyError:
        return None


READS: dict[str, Callable[[], str | None]] = {
    "get": lambda: os.environ.get("ORTM_TEST_FACTOR"),
    "getenv": lambda: os.getenv("ORTM_TEST_FACTOR"),
    "item": _item,
}


@NEEDS_ROWS_OF_2_13
@pytest.mark.parametrize("name", READS)
def test_environment_variables(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        result: Tensor = self.fc(x) * float(READS[name]() or 1)
        return result

    def step(model: Any) -> list[Tensor]:
        monkeypatch.delenv("ORTM_TEST_FACTOR", raising=False)
        found = _outputs(model, 2)
        for factor in ("2", "3"):
            monkeypatch.setenv("ORTM_TEST_FACTOR", factor)
            found += _outputs(model, 2)
        return found

    assert_compiled(as_in_eager(Calls(forward), step), 3)


@NEEDS_ROWS_OF_2_13
def test_the_order_of_an_ordered_dict() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        y: Tensor = self.fc(x)
        for factor in self.factors.values():
            y = y * factor + 1
        return y

    def step(model: Any) -> list[Tensor]:
        found = _outputs(model, 2)
        original(model).factors.move_to_end("a")
        return found + _outputs(model, 2)

    factors = collections.OrderedDict(a=2.0, b=3.0)
    assert_compiled(as_in_eager(Calls(forward, factors=factors), step), 2)


@NEEDS_ROWS_OF_2_13
def test_the_version_counter_of_a_parameter() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        y: Tensor = self.fc(x)
        return y * (1 + self.scale._version)

    def step(model: Any) -> list[Tensor]:
        found = _outputs(model, 2)
        with torch.no_grad():
            original(model).scale.mul_(2)
        return found + _outputs(model, 2)

    report = as_in_eager(Calls(forward, scale=nn.Parameter(torch.ones(()))), step)
    assert any("`_version`" in str(piece) for piece in report["eager_pieces"])


_runs: list[int] = []


@functools.lru_cache
def _number(power: int) -> float:
    _runs.append(power)
    return float(len(_runs) ** power)


@functools.lru_cache
def _table(size: int, *, scale: float = 1.0) -> Tensor:
    _runs.append(size)
    return torch.arange(float(size)) * scale * len(_runs)


CACHED: dict[str, Callable[[Tensor], Tensor]] = {
    "number": lambda y: y * _number(2),
    "tensor": lambda y: y * _table(4, scale=2.0),
}


@pytest.mark.parametrize("name", CACHED)
def test_a_cached_function_runs_once(name: str) -> None:
    def step(model: Any) -> list[Tensor]:
        _runs.clear()
        found = []
        for _ in range(2):
            _number.cache_clear()
            _table.cache_clear()
            found += _outputs(model, 3)
        return found

    assert_compiled(as_in_eager(Calls(lambda self, x: CACHED[name](self.fc(x))), step), 3)
