"""`torch.associative_scan`: elementwise functions are captured for any length, others as torch does it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops.associative_scan import associative_scan

from tests.semantics import Calls, as_in_eager, assert_compiled, assert_whole

Pair = tuple[Tensor, Tensor]


def _recurrence(left: Pair, right: Pair) -> Pair:
    """As Mamba has it."""
    return left[0] * right[0], right[0] * left[1] + right[1]


def _largest(left: list[Tensor], right: list[Tensor]) -> list[Tensor]:
    return [torch.maximum(left[0], right[0])]


def _steps(lengths: Sequence[int]) -> Callable[[Any], list[Tensor]]:
    def step(model: Any) -> list[Tensor]:
        losses = [model(torch.randn(3, n, 4)).square().mean() for n in lengths]
        sum(losses).backward()  # type: ignore[union-attr]
        return losses

    return step


@pytest.mark.parametrize("reverse", [False, True])
def test_an_elementwise_function(reverse: bool) -> None:
    """Captures differ by the number of levels, not by the length."""

    def forward(self: Any, x: Tensor) -> Tensor:
        y = self.fc(x)
        xs = (y.sigmoid(), y.sin())
        states = associative_scan(_recurrence, xs, 1, reverse=reverse, combine_mode="generic")
        return states[1].cos()

    report = as_in_eager(Calls(forward), _steps((9, 8, 10, 11)))
    assert_whole(report, captures=3)


def test_a_list_and_a_function_of_torch() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        (found,) = associative_scan(_largest, [self.fc(x)], -2, combine_mode="generic")
        return found.exp()

    assert_whole(as_in_eager(Calls(forward), _steps((9, 8, 10, 11))), captures=3)


def test_a_function_that_forward_makes() -> None:
    """As Mamba of transformers has it; one that reads a value of forward is traced as torch does it."""

    def forward(self: Any, x: Tensor) -> Tensor:
        def combine(left: Pair, right: Pair) -> Pair:
            return left[0] * right[0], right[0] * left[1] + right[1]

        y = self.fc(x)
        return associative_scan(combine, (y.cos(), y), 1, combine_mode="generic")[1]

    def forward_with_value(self: Any, x: Tensor) -> Tensor:
        y = self.fc(x)

        def combine(left: tuple[Tensor], right: tuple[Tensor]) -> tuple[Tensor]:
            return (left[0] + right[0] + bias * 0,)

        bias = y.mean()
        return associative_scan(combine, (y,), 1, combine_mode="generic")[0]

    assert_whole(as_in_eager(Calls(forward), _steps((9, 8, 10, 11))), captures=3)
    assert_compiled(as_in_eager(Calls(forward_with_value), _steps((5,))))


def test_a_function_of_whole_matrices() -> None:
    """Is traced as torch does it."""

    def product(left: tuple[Tensor], right: tuple[Tensor]) -> tuple[Tensor]:
        return (right[0] @ left[0],)

    def forward(self: Any, x: Tensor) -> Tensor:
        steps = self.fc(x).mean(0).view(-1, 2, 2)
        return associative_scan(product, (steps,), 0, combine_mode="generic")[0]

    assert_compiled(as_in_eager(Calls(forward), _steps((5,))))
