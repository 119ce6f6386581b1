"""Checks of whole tensors, as transformers counts the placeholders of images."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ortmodule_py import ORTModule, last_run_report
from ortmodule_py.dynamo.patches.table import running_torch
from tests.semantics import QUIET, Calls, as_in_eager, assert_whole


def torch_compilable_check(condition: Any, msg: Any, error_type: type = ValueError) -> None:
    """As in transformers: type and text are dropped while it is traced."""
    if torch.compiler.is_compiling():
        if isinstance(condition, Tensor):
            torch._check_tensor_all(condition)
        else:
            torch._check(condition)
    elif not condition:
        raise error_type(msg)


def _all(self: Any, x: Tensor) -> Tensor:
    torch._check_tensor_all(x < 50)
    return self.fc(x)


def _with_type(self: Any, x: Tensor) -> Tensor:
    torch._check_tensor_all_with(IndexError, x < 50, lambda: "too large")
    return self.fc(x)


def _placeholders(self: Any, x: Tensor) -> Tensor:
    """The text has a size of the batch, and a number that only data tells."""
    mask = (x < 50).unsqueeze(-1).expand(*x.shape, 2)
    values = self.fc(x).repeat(1, 2)
    torch_compilable_check(
        mask.sum() == values.numel(), f"{mask.sum()} tokens, {values.shape[0]} features"
    )
    return x.new_zeros(*x.shape, 2).masked_scatter(mask, values)


def _selected(self: Any, x: Tensor) -> Tensor:
    y = self.fc(x)
    torch_compilable_check(y[x[:, 0] < 50].numel() == y.numel(), "large")
    return y


def _within_finally(self: Any, x: Tensor) -> Tensor:
    try:
        return _selected(self, x)
    finally:
        self.done = True


CHECKED = (_all, _with_type, _placeholders, _selected, _within_finally)


def _steps(model: Any) -> list[Tensor]:
    results = []
    for rows in (4, 3, 6, 5):
        results.append(model(torch.linspace(-1, 1, 4 * rows).view(rows, 4)))
        results[-1].square().sum().backward()
    return results


def _module(function: Callable[..., Any]) -> nn.Module:
    torch.manual_seed(3)
    return Calls(function)


@pytest.mark.parametrize("function", CHECKED)
def test_is_captured_once(function: Callable[..., Any]) -> None:
    assert_whole(as_in_eager(_module(function), _steps))


@pytest.mark.parametrize("function", CHECKED)
def test_the_error_is_eagers(function: Callable[..., Any]) -> None:
    """What is computed in its text reads "..."."""
    torch._dynamo.reset()
    eager = _module(function)
    model = ORTModule(copy.deepcopy(eager), QUIET)
    _steps(model)
    large = torch.full((2, 4), 60.0)
    with pytest.raises(Exception) as want:  # whatever eager raises
        eager(large)
    # While older versions capture, `is_compiling()` leads to an error of another type.
    captured = running_torch() >= (2, 13)
    with pytest.raises(want.type if captured else Exception) as got:
        model(large)
    if captured:
        pieces = str(got.value).split("...")
        assert all(piece in str(want.value) for piece in pieces)
    x = torch.ones(2, 4)
    torch.testing.assert_close(model(x), eager(x))


def _caught(self: Any, x: Tensor) -> Tensor:
    try:
        return _placeholders(self, x)
    except ValueError:
        return self.fc(x)


def test_an_error_that_forward_handles_is_raised_where_it_is() -> None:
    eager = _module(_caught)
    model = ORTModule(copy.deepcopy(eager), QUIET)
    large = [torch.full((2, 4), 60.0)] if running_torch() >= (2, 13) else []
    for x in (torch.ones(2, 4), *large, torch.ones(3, 4)):
        torch.testing.assert_close(model(x), eager(x))
    report = last_run_report(model)
    assert report["graph_breaks"] or report["eager_pieces"]
