"""Functions of `math` and numpy of numbers: schedules, sizes, and sizes that numpy computes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ortmodule_py import ORTModule
from tests.semantics import QUIET, Calls, as_in_eager, assert_whole


def _with_numbers(numbers: Sequence[float]) -> Callable[[Any], list[Any]]:
    def step(model: Any) -> list[Any]:
        results = [model(torch.randn(5, 4), number) for number in numbers]
        sum(result.square().sum() for result in results).backward()
        return results

    return step


OF_MATH: dict[str, Callable[[float], float]] = {
    "exp": lambda t: math.exp(-t),
    "expm1": lambda t: math.expm1(t),
    "log": lambda t: math.log(1 + t),
    "log to a base": lambda t: math.log(1 + t, 3),
    "log10": lambda t: math.log10(t),
    "log1p": lambda t: math.log1p(t),
    "pow": lambda t: math.pow(t, 1.5),
    "fabs": lambda t: math.fabs(t - 1),
    "hypot": lambda t: math.hypot(t, 2),
    "atan2": lambda t: math.atan2(t - 1, 2 - t),
    "fmod": lambda t: math.fmod(1 - t, 0.35),
    "degrees": lambda t: math.degrees(t) + math.radians(t),
}
OF_NUMPY: dict[str, Callable[[float], Any]] = {
    "abs": lambda t: np.abs(t - 1),
    "ceil": lambda t: np.ceil(t),
    "clip": lambda t: np.clip(t, 0.4, 0.8),
    "cos": lambda t: 0.5 * (1 + np.cos(np.pi * t)),
    "exp": lambda t: np.exp(-t),
    "log": lambda t: np.log(t) + np.log2(t) + np.log10(t),
    "extrema": lambda t: np.minimum(t, 0.9) + np.maximum(0.5, t),
    "sqrt": lambda t: np.sqrt(t) + np.square(t),
    "sin": lambda t: np.sin(t) + np.tanh(t),
}


@pytest.mark.parametrize("name", OF_MATH)
def test_functions_of_math(name: str) -> None:
    def scaled(m: Any, x: Tensor, t: float) -> Tensor:
        return m.fc(x).double() * OF_MATH[name](t)

    numbers = (0.3, 0.5, 0.7, 1.1, 1.3, 2.9, 4.1)
    assert_whole(as_in_eager(Calls(scaled), _with_numbers(numbers)), captures=3)


@pytest.mark.parametrize("name", OF_NUMPY)
def test_functions_of_numpy(name: str) -> None:
    def scaled(m: Any, x: Tensor, t: float) -> Tensor:
        return m.fc(x) * OF_NUMPY[name](t)

    numbers = (0.3, 0.5, 0.7, 1.1, 1.3, 2.9, 4.1)
    assert_whole(as_in_eager(Calls(scaled), _with_numbers(numbers)), captures=4)


def test_precision() -> None:
    """Numbers in float64 as those of `math`, but for the last bits."""

    def scaled(m: Any, x: Tensor, t: float) -> Tensor:
        return m.fc(x).double().detach() * 0 + math.exp(t) * math.log(1 + abs(t))

    torch._dynamo.reset()
    model = ORTModule(Calls(scaled), QUIET)
    for t in (-300.0, -20.5, -1e-3, 1e-9, 0.7, 33.3, 400.1):
        found = model(torch.ones(1, 4), t)[0, 0].item()
        assert found == pytest.approx(math.exp(t) * math.log(1 + abs(t)), rel=1e-14)


def test_an_annealed_divergence() -> None:
    """A weight that follows from a counter of steps, as in VAEs."""

    def annealed(m: Any, x: Tensor) -> Tensor:
        m.step += 1
        weight = 1 / (1 + math.exp(-0.5 * (m.step - 4)))
        temperature = max(0.5, math.exp(-0.1 * m.step))
        return weight * (m.fc(x) / temperature).softmax(-1)

    def step(model: Any) -> list[Tensor]:
        results = [model(torch.randn(rows, 4)) for rows in (3, 4, 5, 6, 7, 8, 9, 10)]
        sum(result.square().sum() for result in results).backward()
        return results

    assert_whole(as_in_eager(Calls(annealed, step=0), step), captures=4)


@pytest.mark.parametrize("function", [math.exp, math.log])
def test_numbers_that_have_no_result_are_errors(function: Callable[[float], float]) -> None:
    def scaled(m: Any, x: Tensor, t: float) -> Tensor:
        return m.fc(x) * function(t)

    def step(model: Any) -> list[Any]:
        results: list[Any] = []
        for number in (0.5, 0.7, 0.9, 1e4 if function is math.exp else -1.0, 1.1):
            try:
                results.append(model(torch.ones(2, 4), number))
            except (ValueError, OverflowError) as error:
                results.append(type(error).__name__)
        return results

    as_in_eager(Calls(scaled), step)


@pytest.mark.filterwarnings("ignore:.*encountered in")
def test_logarithms_of_numbers_that_have_none() -> None:
    def logarithm(m: Any, x: Tensor, t: float) -> Tensor:
        return m.fc(x).detach() + np.log(t) + np.log2(t) + np.exp(t) + np.sqrt(t)

    def step(model: Any) -> list[Any]:
        return [model(torch.ones(2, 4), t) for t in (0.5, 0.7, 0.0, -1.0, 1.1, 1e4)]

    as_in_eager(Calls(logarithm), step)


# ---- sizes -----------------------------------------------------------------------------------------


def _batches(model: Any) -> list[Any]:
    results: list[Any] = []
    for rows in (6, 9, 12, 5, 7, 10):
        results.append(model(torch.randn(rows, 4)))
        parts = results[-1] if isinstance(results[-1], tuple) else results[-1:]
        sum(part.square().mean() for part in parts if isinstance(part, Tensor)).backward()
    return results


OF_SIZES: dict[str, Callable[[Any, Tensor], Any]] = {
    "a share": lambda m, x: m.fc(x) * (1 / x.shape[0]),
    "a logarithm": lambda m, x: m.fc(x) - math.log(len(x)),
    "a root": lambda m, x: m.fc(x) / np.sqrt(x.shape[0]) / np.sqrt(x.shape[1]),
    "all elements": lambda m, x: m.fc(x).reshape(int(np.prod(x.shape))) * 2,
    "a product as a size": lambda m, x: m.fc(x).reshape(-1, np.prod(x.shape[1:])) * 2,
    "bits for each dim": lambda m, x: m.fc(x).sum() / (np.log(2) * np.prod(x.shape)),
    "half of the rows": lambda m, x: m.fc(x)[: int(np.floor(x.shape[0] / 2))] * 2,
    "a size that is asked": lambda m, x: m.fc(x)[:, : np.ceil(np.log(x.shape[1])).astype(int)] * 2,
    "an item": lambda m, x: m.fc(x)[:, : np.sqrt(x.shape[1]).astype("int").item()] * 2,
}


@pytest.mark.parametrize("name", OF_SIZES)
def test_sizes(name: str) -> None:
    assert_whole(as_in_eager(Calls(OF_SIZES[name]), _batches), captures=1)


def test_ghost_batches() -> None:
    """One capture for each number of chunks, as TabNet has them."""

    def normalized(m: Any, x: Tensor) -> Tensor:
        chunks = m.fc(x).chunk(int(np.ceil(x.shape[0] / 5)), 0)
        return torch.cat([chunk - chunk.mean(0) for chunk in chunks])

    assert_whole(as_in_eager(Calls(normalized), _batches), captures=3)


def test_results_are_numbers_of_numpy() -> None:
    def sized(m: Any, x: Tensor) -> tuple[Any, ...]:
        sizes = np.prod(x.shape), np.ceil(x.shape[0] / 2), np.sqrt(x.shape[1]), np.prod([2, 3])
        sizes += np.floor(x.shape[0]), np.maximum(x.shape[0], 2.5), np.minimum(len(x), 3)
        return (m.fc(x), *sizes)

    assert_whole(as_in_eager(Calls(sized), _batches), captures=2)


def test_types_of_tensors() -> None:
    """Those of numbers of numpy are float64, those of Python's have the default type."""

    def made(m: Any, x: Tensor, t: float) -> tuple[Tensor, ...]:
        root, faded = np.sqrt(2.0), np.exp(-t)
        wide = (torch.tensor(root), torch.tensor(1 - faded / 2), torch.as_tensor([faded, 1.0]))
        sizes = (torch.tensor(np.prod(x.shape)), torch.tensor(np.ceil(x.shape[0] / 2)))
        narrow = (torch.tensor(float(faded)), torch.tensor(math.exp(faded)), torch.tensor(t))
        return (m.fc(x) * faded * root, *wide, *sizes, *narrow, torch.full((2,), float(root)))

    def step(model: Any) -> list[Any]:
        return [model(torch.randn(rows, 4), 0.1 * rows) for rows in (3, 4, 5, 6, 7)]

    as_in_eager(Calls(made), step)


def test_numbers_of_numpy_behind_a_graph_break() -> None:
    def sized(m: Any, x: Tensor) -> Tensor:
        total, half = np.prod(x.shape), np.ceil(x.shape[0] / 2)
        width = np.sqrt(x.shape[1])
        torch._dynamo.graph_break()
        kinds = [type(number).__name__ for number in (total, half, width)]
        scale = total.astype(np.float32) + half.astype(int) + width.tolist() + len("".join(kinds))
        return m.fc(x) * float(scale)  # type: ignore[no-any-return]

    as_in_eager(Calls(sized), _batches)
