"""Loops over a size that changes: captured for a few sizes, then what stands around them is captured once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.semantics import Calls, as_in_eager, assert_compiled

_WHAT = "a loop over a size that changes from call to call"


def _carried(self: Any, x: Tensor) -> Tensor:
    x, h = self.fc(x).sin(), x.new_zeros(x.size(0), 4)
    for t in range(x.size(1)):
        h = torch.tanh(h * 0.5 + x[:, t])
    return h.cos()


def _read_in_return(self: Any, x: Tensor) -> Tensor:
    x, h, outs = x.sin(), x.new_zeros(x.size(0), 4), []
    for xt in x.unbind(1):
        h = torch.tanh(h + self.fc(xt))
        outs.append(h)
    return self.fc(torch.stack(outs, 1))


def _read_later(self: Any, x: Tensor) -> Tensor:
    x, outs = self.fc(x), []
    for t, row in enumerate(x.transpose(0, 1)):
        outs += [row * (t + 1)]
    y = self.fc(x).sum(1)
    outs = torch.stack(outs, 1).cos()
    return self.fc(outs.exp()).sum(1) + y


def _tuples(self: Any, x: Tensor) -> Tensor:
    x = x.sin()
    states: tuple[Tensor, ...] = ()
    for i in range(0, x.size(1), 2):
        states = (*states, self.fc(x[:, i : i + 2]).sum(1))
    return torch.stack(states).amax(0).sin()


def _joined(self: Any, x: Tensor) -> Tensor:
    x = x.cos()
    states: tuple[Tensor, ...] = ()
    for a, b in zip(x.unbind(1), x.flip(1).unbind(1), strict=True):
        states = states + (a * b.sin(),)  # noqa: RUF005 (its own instructions)
    return self.fc(torch.stack(states).amax(0)).sin()


def _under_no_grad(self: Any, x: Tensor) -> Tensor:
    y = self.fc(x[:, 0]).sin()
    with torch.no_grad():
        for t in range(x.size(1)):
            y = y + x[:, t]
    return y * self.fc(x[:, 0])


def _comprehension(self: Any, x: Tensor) -> Tensor:
    x = self.fc(x).sin()
    rows = [x[:, t] * t for t in range(x.size(1))]
    y = torch.stack(rows, 1).cumsum(1)
    return self.fc(y.cos()).sum(1)


def _comprehension_in_a_call(self: Any, x: Tensor) -> Tensor:
    x = self.fc(x).sin()
    y = torch.cat([x[:, t : t + 1] * t for t in range(x.size(1))], 1)
    return self.fc(y.cos()).sum(1)


def _two_loops(self: Any, x: Tensor) -> Tensor:
    x = self.fc(x)
    y = x[:, 0].exp()
    for t in range(x.size(1)):
        y = y.cos() + x[:, t]
    z = self.fc(y).tanh()
    for a, b in zip(
        x.unbind(1),
        x.flip(1).unbind(1),
        strict=True,
    ):
        z = z * 0.5 + a * b
    return self.fc(z)


def _given_number(self: Any, x: Tensor) -> Tensor:
    y = self.fc(x[:, 0])
    for _ in range(x.size(1)):
        y = y * 0.9 + y.sin()
        if y.dim() > 2:
            break
    return y.cos()


class _Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        return (self.a(x) + self.b(h)).tanh()


class _Scan(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.norm = _Cell(), nn.LayerNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        h, outs = x.new_zeros(x.size(0), 4), []
        for t in range(x.size(1)):
            h = self.cell(x[:, t], h)
            outs.append(h)
        y = torch.stack(outs, dim=1)
        return x + self.norm(y)


def _layers(self: Any, x: Tensor) -> Tensor:
    x = self.fc(x)
    for layer in self.layers:
        x = layer(x)
    return self.fc(x.sin())


FORWARDS: dict[Callable[[Any, Tensor], Tensor], int] = {
    _carried: 6,
    _read_in_return: 7,
    _read_later: 8,
    _tuples: 5,
    _joined: 6,
    _under_no_grad: 6,
    _comprehension: 7,
    _comprehension_in_a_call: 7,
    _two_loops: 11,
    _given_number: 6,
}
"""With the captures that it takes for any number of lengths."""


def _lengths(lengths: range) -> Callable[[Any], list[Tensor]]:
    def step(model: Any) -> list[Tensor]:
        losses = [model(torch.randn(3, n, 4)).square().mean() for n in lengths]
        sum(losses).backward()  # type: ignore[union-attr]
        return losses

    return step


@pytest.mark.parametrize("forward", FORWARDS, ids=lambda forward: forward.__name__)
def test_a_loop_over_a_size(forward: Callable[[Any, Tensor], Tensor]) -> None:
    """Takes as many captures for any number of lengths: what is behind the loop is compiled, too."""
    report = as_in_eager(Calls(forward), _lengths(range(3, 23)))
    assert_compiled(report, FORWARDS[forward])
    assert report["captures"] == FORWARDS[forward]  # fewer: what is behind the loop is in eager
    for place in report["graph_breaks"]:
        assert _WHAT in place and "test_open_loops.py:" in place


def test_nothing_but_a_loop_over_a_size() -> None:
    """Runs in eager PyTorch once the size has had too many values, which is said."""

    def forward(self: Any, x: Tensor) -> Tensor:
        y: Any = 0
        for t in range(x.size(1)):
            y = y + self.fc(x[:, t]).sum()
        return y

    report = as_in_eager(Calls(forward), _lengths(range(3, 9)))
    (reason,) = report["eager_pieces"]
    assert f"the whole module: all that it computes is in {_WHAT}" in reason


def test_layers_with_a_loop_over_a_size() -> None:
    """Each layer has its own loop, whose cell is captured once."""
    model = Calls(_layers, layers=nn.ModuleList(_Scan() for _ in range(3)))
    report = as_in_eager(model, _lengths(range(3, 15)))
    assert_compiled(report, captures=18)


def test_a_loop_that_cannot_be_moved() -> None:
    """Is captured for each size, as the first ones are."""

    def forward(self: Any, x: Tensor) -> Tensor:
        y = self.fc(x[:, 0])
        try:
            for t in range(x.size(1)):
                y = y + x[:, t]
        finally:
            y = y * 2
        return y

    report = as_in_eager(Calls(forward), _lengths(range(3, 10)))
    assert_compiled(report, captures=7)
    assert not report["graph_breaks"]


def test_a_loop_whose_body_needs_a_size() -> None:
    """Has the same number of rounds for all sizes, so it stays as it is."""

    def forward(self: Any, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x) * len(x.unbind(1))
        return x

    model = Calls(forward, layers=nn.ModuleList(nn.Linear(4, 4) for _ in range(2)))
    report = as_in_eager(model, _lengths(range(3, 10)))
    assert_compiled(report, captures=7)
    assert not report["graph_breaks"]
