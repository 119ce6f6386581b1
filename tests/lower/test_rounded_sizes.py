"""Sizes that a program makes of a size and floats, such as the capacity of an expert."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import sympy
import torch
from torch import Tensor, nn
from torch.utils._sympy.functions import CeilToInt, FloatTrueDiv, IntTrueDiv, ToFloat, TruncToInt

from ortmodule_py import ORTModule, last_run_report
from ortmodule_py.base.errors import CannotLower
from ortmodule_py.lower.sizes.symbolic import dim_text
from tests.semantics import assert_compiled, assert_whole


class Cut(nn.Module):
    def __init__(self, size: Callable[[int], int]) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x)[:, : self.size(x.shape[1])] * 1.0


def _trained(
    size: Callable[[int], int], sizes: Sequence[int] = (20, 29, 33, 48, 50, 29)
) -> tuple[dict[str, Any], list[str]]:
    """Report, and what was said of sizes, after steps with several sizes."""
    torch._dynamo.reset()
    model = ORTModule(Cut(size))
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger(model._logger.name).addHandler(handler)
    for n in sizes:
        x = torch.randn(2, n, 3)
        result = model(x)
        assert torch.equal(result, model.module.forward(x)), n
        assert result.shape[1] == size(n), n
        result.sum().backward()
    return dict(last_run_report(model)), [text for text in said if "is a capture" in text]


ONCE: dict[str, Callable[[int], int]] = {
    "capacity": lambda n: int(n * 1.25 / 4),
    "thirds": lambda n: int((n * 0.75) / 3),
    "at least": lambda n: max(int(1.5 * n / 4), 4),
    "upwards": lambda n: math.ceil(n * 1.25 / 4),
    "down": lambda n: math.floor(n / 2 * 0.75),
    "steps": lambda n: int(n * 1.25 * 0.5),
}
COMPUTED_BEFORE: dict[str, Callable[[int], int]] = {
    "tenths": lambda n: int(n * 1.1 / 4),
    "share": lambda n: int(n / 6 * 1.25),
    "nearest": lambda n: round(n * 0.3),
    "shifted": lambda n: int(n * 0.3 + 0.5),
    "below": lambda n: int(n * (1 / 49)) + 2,
}


@pytest.mark.parametrize("use", ONCE)
def test_one_capture_for_all_sizes(use: str) -> None:
    report, said = _trained(ONCE[use])
    assert_compiled(report, captures=2)
    assert not said


@pytest.mark.parametrize("use", COMPUTED_BEFORE)
def test_one_capture_for_sizes_that_are_computed_before_the_call(use: str) -> None:
    report, _ = _trained(COMPUTED_BEFORE[use])
    assert_whole(report, captures=2)


def _eighth(n: int) -> int:
    """Which sympy computes with one constant, 0.125, that rounds otherwise."""
    return int(n * 1.25 * 0.1)


def test_a_capture_for_each_size() -> None:
    report, said = _trained(_eighth)
    assert_compiled(report, captures=5)
    (text,) = said
    assert "specialized in a size or an index" in text
    assert "test_rounded_sizes.py:" in text


def test_few_sizes_are_no_reason_to_warn() -> None:
    report, said = _trained(_eighth, (20, 29, 20, 29))
    assert_compiled(report, captures=2)
    assert not said


N = sympy.Symbol("n", positive=True, integer=True)
F = sympy.Float


@pytest.mark.parametrize(
    ("number", "python", "said"),
    [
        (FloatTrueDiv(F(1.25) * ToFloat(N), F(4.0)), lambda n: n * 1.25 / 4, (True, True)),
        (FloatTrueDiv(F(0.75) * ToFloat(N), F(3.0)), lambda n: n * 0.75 / 3, (True, True)),
        (F(1.25) * IntTrueDiv(N, sympy.Integer(8)), lambda n: n / 8 * 1.25, (True, True)),
        (F(1.25) * IntTrueDiv(N, sympy.Integer(6)), lambda n: n / 6 * 1.25, (False, False)),
        (FloatTrueDiv(F(1.1) * ToFloat(N), F(3.0)), lambda n: n * 1.1 / 3, (False, False)),
        (F(1 / 49) * ToFloat(N), lambda n: n * (1 / 49), (False, False)),
        (ToFloat(N) + F(0.5), lambda n: n + 0.5, (False, False)),
    ],
)
def test_integers_round_as_python_does(
    number: Any, python: Callable[[int], float], said: tuple[bool, bool]
) -> None:
    """Or are not said at all."""
    sizes = [*range(1, 4000), *range(2**20 - 500, 2**20)]
    for make, rounded, known in zip((TruncToInt, CeilToInt), (int, math.ceil), said, strict=True):
        if not known:
            with pytest.raises(CannotLower, match="goes through floating point numbers"):
                dim_text(make(number))
            continue
        code = compile(dim_text(make(number)), "size", "eval")
        assert all(eval(code, {"n": n}) == rounded(python(n)) for n in sizes)
