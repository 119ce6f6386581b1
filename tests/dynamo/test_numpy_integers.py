"""Integers in arrays of numpy, which Dynamo passes as tensors and reads in the graph."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from ortmodule_py import ORTModule, last_run_report
from ortmodule_py.trace import record
from tests.semantics import QUIET, Calls, as_in_eager, assert_compiled, assert_whole, original


def _steps(values: Sequence[Any], name: str = "") -> Callable[[Any], Any]:
    """A step with each value, as an argument or as this attribute of the module, and in two batches."""

    def step(model: Any) -> list[Any]:
        found = []
        for batch, value in enumerate(values, 3):
            x = torch.randn(batch, 4)
            if name:
                setattr(original(model), name, value)
            result = model(x) if name else model(x, value)
            tensors = [part for part in result if isinstance(part, Tensor)]
            sum(part.square().sum() for part in tensors).backward()
            found.append(result)
        return found

    return step


def _split(m: Any, x: Tensor) -> tuple[Tensor, ...]:
    y = m.fc(x).repeat(1, 3)
    return y[:, : m.first] * 2, y[:, m.first : m.number].exp(), y[:, m.number :]


def _all(uses: dict[str, Callable[..., tuple[Any, ...]]]) -> Callable[..., tuple[Any, ...]]:
    """The results of all uses."""
    return lambda *args: tuple(part for use in uses.values() for part in use(*args))


ATTRIBUTES: dict[str, Callable[[Any, Tensor], tuple[Any, ...]]] = {
    "slice": lambda m, x: (m.fc(x)[:, : m.number] * 1.0,),
    "view": lambda m, x: (m.fc(x).view(-1, m.number) * 1.0,),
    "created": lambda m, x: (m.fc(x)[:, :1] + torch.ones(m.number),),
    "repeated": lambda m, x: (m.fc(x).repeat(1, m.number).tanh(),),
}


def test_an_attribute() -> None:
    step = _steps([np.int64(n) for n in (2, 4, 2, 4)], "number")
    report = as_in_eager(Calls(_all(ATTRIBUTES), number=np.int64(2)), step)
    assert_compiled(report, captures=2)  # where the number is the size itself, nothing is cut


def test_offsets() -> None:
    """Constants for the first four values, then one capture for all others."""
    _, first, second = np.cumsum([0, 3, 2])
    step = _steps([second + n % 6 for n in range(9)], "number")
    assert_compiled(as_in_eager(Calls(_split, first=first, number=second), step), captures=5)


def _padded(m: Any, x: Tensor) -> tuple[Any, ...]:
    """As audio codecs pad to whole frames."""
    count = x.shape[0]
    missing = math.ceil(count / m.hop) * m.hop - count
    rest = (m.hop - count % m.hop) % m.hop
    y = F.pad(m.fc(x), (0, 0, 0, missing)) * (1.0 if isinstance(m.hop, int) else 2.0)
    return y, F.pad(y, (0, rest)), m.hop, count // m.hop


def test_sizes_that_are_computed_with_an_attribute() -> None:
    module = Calls(_padded, hop=np.prod([2, 3]))

    def step(model: Any) -> list[Any]:
        results = [model(torch.randn(rows, 4)) for rows in (3, 4, 5, 7, 8)]
        sum(result[0].sum() + result[1].sum() for result in results).backward()
        return results

    assert_whole(as_in_eager(module, step), captures=2)


ARGUMENTS: dict[str, Callable[[Any, Tensor, Any], tuple[Any, ...]]] = {
    "int": lambda m, x, k: (m.fc(x)[:, : int(k)] * 1.0,),
    "item": lambda m, x, k: (m.fc(x)[:, k.item() :] * 1.0,),
    "tail": lambda m, x, k: (m.fc(x)[:, int(k) : int(k) + 2].exp(),),
    "factor": lambda m, x, k: (m.fc(x) * int(k),),
    "root": lambda m, x, k: (m.fc(x) / abs(int(k)) ** 0.5,),
    "result": lambda m, x, k: (m.fc(x), int(k), 2 * int(k) + len(x)),
}


POSITIVE, NEGATIVE, EITHER = (3, 2, 1, 3), (-4, -3, -4), (2, -3, 1, -4)


@pytest.mark.parametrize(
    ("use", "values"),
    [
        ("int", EITHER),
        ("int", NEGATIVE),
        ("item", POSITIVE),
        ("tail", EITHER),
        ("factor", POSITIVE),
        ("root", NEGATIVE),
        ("result", EITHER),
    ],
)
def test_an_argument(use: str, values: tuple[int, ...]) -> None:
    report = as_in_eager(Calls(ARGUMENTS[use]), _steps(list(map(np.asarray, values))))
    assert not report["eager_pieces"]


def test_an_integer_behind_a_graph_break() -> None:
    def forward(m: Any, x: Tensor, k: Any) -> tuple[Tensor]:
        y, n = m.fc(x), int(k)
        torch._dynamo.graph_break()
        return (y[:, :n] * n,)

    report = as_in_eager(Calls(forward), _steps(list(map(np.asarray, (3, 2, 4)))))
    assert not report["eager_pieces"]


class Tail(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, k: int) -> Tensor:
        ctx.k = k
        return x[:, :2] * 1.0

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        both = torch.cat([gradient, gradient * 2, gradient * 3], 1)
        return both[:, ctx.k :][:, :4] * 1.0, None


def test_an_integer_that_only_a_backward_reads() -> None:
    def forward(m: Any, x: Tensor, k: Any) -> tuple[Tensor]:
        return (Tail.apply(m.fc(x), int(k)),)

    report = as_in_eager(Calls(forward), _steps(list(map(np.asarray, (-4, -5, 1, 2)))))
    assert not report["eager_pieces"]


def test_an_array_that_the_module_changes() -> None:
    def forward(m: Any, x: Tensor, k: Any) -> tuple[Any, ...]:
        y = m.fc(x)[:, : int(k)] * 1.0
        k += 1
        return y, k

    def step(model: Any) -> list[Any]:
        k, found = np.asarray(1), []
        for batch in (3, 4, 5):
            y, changed = model(torch.randn(batch, 4), k)
            y.sum().backward()
            found += [y, int(changed), int(k)]
        return found

    as_in_eager(Calls(forward), step)


def test_what_no_run_binds_is_found_at_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "integer_in", lambda _: None)
    torch._dynamo.reset()
    model = ORTModule(Calls(ARGUMENTS["int"]), QUIET)
    (y,) = model(torch.randn(3, 4), np.asarray(2))
    assert y.shape == (3, 2)
    (said,) = last_run_report(model)["eager_pieces"]
    assert "neither a size of an input nor an argument" in said
    assert "test_numpy_integers.py:" in said
