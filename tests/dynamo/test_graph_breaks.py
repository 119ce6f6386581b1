"""Pieces between graph breaks: what one hands to the next keeps its changing sizes."""

from __future__ import annotations

import contextlib
import copy
import logging
import random
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ortmodule_py import ORTModule, last_run_report
from ortmodule_py.dynamo.patches.table import running_torch
from tests.semantics import QUIET, Calls, as_in_eager, assert_compiled, assert_whole, original


def _layer_drop(self: Any, x: Tensor) -> Tensor:
    y = self.fc(x)
    for _ in range(2):
        if random.random() < 0.5:
            continue
        y = self.fc(y)
    return y


_CONDITION = (
    "a condition depends on a number that `random` draws"
    if running_torch() >= (2, 13)
    else "numbers are drawn by `random.random`"  # Dynamo does not follow it
)
DRAWS: dict[str, tuple[Callable[[Any, Tensor], Tensor], str]] = {
    "condition": (
        lambda self, x: self.fc(x) if random.random() < 0.5 else self.fc(x.sin()),
        _CONDITION,
    ),
    "condition in a loop": (_layer_drop, _CONDITION),
    "size": (
        lambda self, x: self.fc(x)[random.randrange(x.size(0)) :],
        "numbers are drawn by `random.randrange`",
    ),
    "numpy": (
        lambda self, x: self.fc(x) * np.random.beta(2.0, 3.0),
        "numbers are drawn by `numpy.random`",
    ),
}


@pytest.mark.parametrize("name", DRAWS)
def test_the_reason_names_who_draws(name: str) -> None:
    forward, reason = DRAWS[name]

    def step(model: Any) -> list[Any]:
        np.random.seed(3)
        results = [model(torch.randn(2 + i % 2, 5, 4)) for i in range(4)]
        sum(y.square().sum() for y in results).backward()
        return [*results, random.random(), float(np.random.rand())]

    report = as_in_eager(Calls(forward), step)
    assert reason in {str(text).partition(" (")[0] for text in report["graph_breaks"]}


def _broken_twice(self: Any, x: Tensor, ids: Tensor) -> Tensor:
    h = self.fc(x) + ids[:, :, None]
    torch._dynamo.graph_break()
    h = self.second(h) * (ids != 0)[:, :, None]
    torch._dynamo.graph_break()
    return self.third(h).sum(1)


def _zeros(self: Any, x: Tensor) -> Tensor:
    zeros = torch.autograd.Variable(torch.zeros(4))
    return self.fc(x) + zeros


def _state(self: Any, x: Tensor) -> Tensor:
    state = np.random.RandomState(0)
    return self.fc(x) * state.rand()


def _every(self: Any, x: Tensor) -> Tensor:
    return self.fc(x) if all(x.flatten() > -9.0) else x


def _within_try(self: Any, x: Tensor) -> Tensor:
    y = self.fc(x).sin()
    try:
        y = y * y.sum().item()
    finally:
        x = x * 2
    return y


def _in_front_of_all(self: Any, x: Tensor) -> Tensor:
    print(end="")
    return self.fc(x)


@pytest.mark.parametrize("forward", [_zeros, _state, _every, _within_try, _in_front_of_all])
def test_a_break_is_listed_once_with_the_users_line(forward: Callable[..., Tensor]) -> None:
    def step(model: Any) -> list[Tensor]:
        """Two kinds of input, each of which is a capture."""
        given = [torch.randn(3, 4), torch.randn(2, 3, 4)]
        return [model(x).square().mean() for x in given]

    report = as_in_eager(Calls(forward), step)
    first = forward.__code__.co_firstlineno
    lines = [
        line
        for said in report["graph_breaks"]
        for line in range(first + 1, first + 4)
        if f"({__file__}:{line})" in said
    ]
    # The object that `_state` makes in its first line, and the call of its method.
    assert (
        len(lines)
        == len(set(lines))
        == len(report["graph_breaks"])
        == (2 if forward is _state else 1)
    )
    assert not any("step_unsupported" in said for said in report["graph_breaks"])


def test_a_context_manager_of_torch_that_cannot_be_captured_is_named() -> None:
    def forked(self: Any, x: Tensor) -> Tensor:
        y = self.fc(x)
        with torch.random.fork_rng():
            return y * torch.ones(4)

    report = as_in_eager(Calls(forked), lambda model: model(torch.ones(3, 4)))
    said = str(report["graph_breaks"] + report["eager_pieces"])
    assert "`fork_rng` returns an object that is no tensor" in said
    assert "a `with` of `_GeneratorContextManager`" in said


def test_one_capture_per_piece_over_changing_batches() -> None:
    module = Calls(_broken_twice, second=nn.Linear(4, 4), third=nn.Linear(4, 2))

    def step(sizes: list[tuple[int, int]]) -> Any:
        def run(model: Any) -> list[Tensor]:
            found = []
            for batch, length in sizes:
                y = model(torch.randn(batch, length, 4), torch.randint(0, 5, (batch, length)))
                y.square().sum().backward()
                found.append(y)
            return found

        return run

    report = as_in_eager(module, step([(3, 5), (4, 5), (7, 5), (2, 5)]))
    assert_compiled(report, captures=3)
    assert len(report["graph_breaks"]) == 2
    # The second size of a float tensor is found to change at its second value.
    report = as_in_eager(module, step([(3, 5), (4, 6), (7, 9), (2, 3), (5, 8)]))
    assert_compiled(report, captures=6)


@pytest.mark.parametrize("returned", [False, True])
def test_what_is_behind_retain_grad_is_compiled(returned: bool) -> None:
    """Of values that forward keeps or returns; their gradients are eager's."""

    def forward(self: Any, x: Tensor) -> Any:
        h = self.fc(x).tanh()
        h.retain_grad()
        y = h.sin() * h + self.fc(h)
        if returned:
            return y, h
        self.seen = [h]
        return y

    def step(model: Any) -> list[Any]:
        results = []
        for rows in (2, 3, 5):
            found = model(torch.linspace(-1, 1, 4 * rows).view(rows, 4))
            y, h = found if returned else (found, original(model).seen[0])
            y.square().sum().backward()
            results += [y, h.grad]
        return results

    report = as_in_eager(Calls(forward), step)
    if running_torch() >= (2, 13):
        assert_compiled(report, captures=2)
        assert len(report["graph_breaks"]) == 1 and report["pieces_run"] == 2
        assert "`retain_grad()`" in report["graph_breaks"][0]


class Penalty(nn.Module):
    """A loss with a weight, made anew in each forward."""

    def __init__(self, strength: float) -> None:
        super().__init__()
        self.strength = strength
        self.weight = self.made()

    def made(self) -> nn.Parameter:
        return nn.Parameter(torch.ones(4), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return (x.square() * self.weight).mean() * self.strength


def _penalized(self: Any, x: Tensor) -> Tensor:
    y = self.fc(x)
    return y.sum() + Penalty(0.5)(y)


def test_making_a_module_is_no_part_of_the_model() -> None:
    """Dynamo gives up its `__init__`, in which nothing of the model runs."""

    def step(model: Any) -> list[Tensor]:
        losses = [model(torch.randn(n, 4)) for n in (3, 4, 3)]
        sum(losses).backward()  # type: ignore[union-attr]
        return losses

    report = as_in_eager(Calls(_penalized), step)
    assert_compiled(report, captures=6)
    assert report["graph_breaks"]


class Scaled(nn.Module):
    """Its `__init__` takes a value of the model."""

    def __init__(self, scale: Tensor) -> None:
        super().__init__()
        self.scale = scale.exp()
        self.weight = nn.Parameter(torch.ones(4), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale * self.weight


def test_what_a_module_is_made_of_may_be_a_part() -> None:
    report = as_in_eager(
        Calls(lambda self, x: Scaled(self.fc(x))(x)), lambda model: model(torch.randn(3, 4))
    )
    (piece,) = report["eager_pieces"]
    assert "__init__" in piece and not report["compiled"]


def test_a_comprehension_is_a_loop() -> None:
    """Before Python 3.12 it is a function, which runs in Python as its graph breaks."""

    def listed(self: Any, x: Tensor) -> Tensor:
        ends = [int(row.sum().item()) + self.offset for row in x]
        return self.fc(x) * sum(ends)

    report = as_in_eager(Calls(listed, offset=torch.ones(())), lambda m: m(torch.randn(3, 4)))
    assert_compiled(report, captures=2)
    assert report["graph_breaks"]


def test_reading_a_list_of_floats_is_named_as_such() -> None:
    def scaled(self: Any, x: Tensor) -> Tensor:
        first, second = x.mean(1).tolist()
        y: Tensor = self.fc(x) * first + second
        return y

    (reason,) = as_in_eager(Calls(scaled), lambda m: m(torch.randn(2, 4)))["graph_breaks"]
    assert "a number is read from a tensor" in reason


_logger = logging.getLogger("tests.of_a_model_that_logs")


def _by_name(self: Any, x: Tensor) -> Tensor:
    logger = logging.getLogger("tests.of_a_model_that_logs")
    logger.info("%d rows", len(x))
    logging.getLogger().debug(x)
    return self.fc(x)


def _of_the_module(self: Any, x: Tensor) -> Tensor:
    y: Tensor = self.fc(x)
    warnings.warn("slow", stacklevel=1)
    logging.info("the mean is %s", y.mean())
    return y.tanh()


def _if_enabled(self: Any, x: Tensor) -> Tensor:
    y: Tensor = self.fc(x)
    if _logger.isEnabledFor(logging.DEBUG) or _logger.getEffectiveLevel() < logging.DEBUG:
        _logger.debug("%s", y.mean().item())
    return y.tanh()


class Loguru:
    """As loguru's logger, whose methods look at the stack."""

    def info(self, text: str, *args: Any) -> None:
        torch._dynamo.graph_break()


def _of_loguru(self: Any, x: Tensor) -> Tensor:
    y: Tensor = self.fc(x)
    self.loguru.info("{} rows", len(y))
    return y.tanh()


@pytest.mark.parametrize("forward", [_by_name, _of_the_module, _if_enabled, _of_loguru])
def test_what_only_logs_is_skipped(forward: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    known = types.ModuleType("loguru._logger")
    known.Logger = Loguru  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, known.__name__, known)
    module = Calls(forward)
    module.loguru = Loguru()  # type: ignore[assignment]
    assert_whole(as_in_eager(module, lambda model: model(torch.randn(3, 4)).square().sum()))


@contextlib.contextmanager
def _named() -> Iterator[None]:
    yield


def _of_another_function(self: Any, x: Tensor) -> Tensor:
    return _checked_in_contexts(self.fc(x)).tanh()


def _checked_in_contexts(y: Tensor) -> Tensor:
    with torch.no_grad(), _named():
        if y.isnan().any():
            raise ValueError("no number")
    return y


def test_a_check_in_a_context_of_a_function_that_is_called() -> None:
    assert_whole(as_in_eager(Calls(_of_another_function), lambda model: model(torch.randn(3, 4))))


def _spans(shape: tuple[int, int], width: int) -> np.ndarray:
    """Places of random spans, as Wav2Vec2 masks features (SpecAugment)."""
    chance = np.random.rand(1).item()
    rows = []
    for _ in range(shape[0]):
        starts = np.random.choice(np.arange(shape[1] - width + 1), 1 + int(chance), replace=False)
        rows.append((starts[:, None] + np.arange(width)[None]).reshape(-1))
    places = np.zeros(shape, dtype=bool)
    np.put_along_axis(places, np.array(rows), True, -1)
    return places


class _Masked(nn.Module):
    """Calls it where Dynamo cannot break the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)) for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        with contextlib.ExitStack():
            for layer in self.layers:
                x = layer(x)
            mask = torch.from_numpy(_spans((x.shape[0], x.shape[1]), 2))
            return (x * ~mask[:, :, None]).square().sum()


def test_a_function_of_numpy_is_no_capture_for_each_size() -> None:
    torch._dynamo.reset()
    module = _Masked()
    model = ORTModule(copy.deepcopy(module), QUIET)
    captures = []
    for length in range(5, 13):
        x, results = torch.randn(3, length, 4), []
        for each in (module, model):
            np.random.seed(1)
            results.append(each(x))
        torch.testing.assert_close(*results)
        captures.append(last_run_report(model)["captures"])
    assert captures[2] == captures[-1] > 0
    assert "numbers are drawn by `numpy.random`" in str(last_run_report(model)["eager_pieces"])
