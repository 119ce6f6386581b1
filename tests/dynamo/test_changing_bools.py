"""Bools that Python computes from numbers that change: bools of Python, with a capture per outcome."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from ortmodule_py import ORTModule, last_run_report
from tests.semantics import QUIET, Calls, as_in_eager, assert_compiled

NUMBERS = (0.3, 0.7, 0.9, 0.1, 0.5)

# What is computed from "y" and the answer to "is t above a half?".
USES: dict[str, Callable[[Tensor, bool], Any]] = {
    "identity": lambda y, b: y * (2 if b is True else 1),
    "no_identity": lambda y, b: y * (2 if b is not False else 1),
    "bool": lambda y, b: y * (2 if bool(b) is True else 1),
    "not": lambda y, b: y * (2 if (not b) is True else 1),
    "text": lambda y, b: y * len(str(b)) + len(f"{b}"),
    "type": lambda y, b: y * (2 if type(b) is bool else 1),
    "key": lambda y, b: y * {"True": 2.0, "False": 3.0}[str(b)] * {True: 2.0, False: 3.0}[b],
    "index": lambda y, b: y * [2.0, 3.0][b],
    "equal": lambda y, b: y * sum(1 for q in (True, False) if q == b),
    "any": lambda y, b: y * (2 if any(q is True for q in [b]) else 1),
    "arithmetic": lambda y, b: y * b + b + (b & True) + (b ^ True),
    "output": lambda y, b: (y, b, not b),
    "keepdim": lambda y, b: y.sum(-1, keepdim=b),
    "training": lambda y, b: F.dropout(y, 1.0, training=b),
    "causal": lambda y, b: F.scaled_dot_product_attention(y[None], y[None], y[None], is_causal=b),
    "corners": lambda y, b: F.interpolate(
        y[None], scale_factor=2.0, mode="linear", align_corners=b
    ),
    "unbiased": lambda y, b: y.std(0, unbiased=b),
    "largest": lambda y, b: y.topk(2, largest=b).values,
}


def _trained(y: Any) -> Any:
    parts = y.values() if isinstance(y, dict) else [y]
    sum((part[0] if isinstance(part, tuple) else part).sum() for part in parts).backward()
    return y


@pytest.mark.parametrize(
    "uses", [("identity", "text", "keepdim"), pytest.param(tuple(USES), marks=pytest.mark.slow)]
)
def test_bools_of_a_changing_float(uses: tuple[str, ...]) -> None:
    module = Calls(lambda self, x, t: {use: USES[use](self.fc(x), t > 0.5) for use in uses})
    report = as_in_eager(
        module, lambda model: [_trained(model(torch.ones(3, 4), t)) for t in NUMBERS]
    )
    # The first number is a constant.
    assert_compiled(report, captures=3)


@pytest.mark.slow
def test_bools_of_a_changing_size() -> None:
    module = Calls(lambda self, x: {use: USES[use](self.fc(x), x.shape[0] > 3) for use in USES})
    report = as_in_eager(
        module, lambda model: [_trained(model(torch.ones(size, 4))) for size in (2, 5, 3, 6, 4)]
    )
    assert_compiled(report, captures=2)


COMPARISONS: dict[str, Callable[[float], Any]] = {
    "unequal_bools": lambda t: (t > 0.2) != (t > 0.6),
    "xor": lambda t: (t > 0.2) ^ (t > 0.6),
    "and": lambda t: (t > 0.2) & (t > 0.6),
    "or": lambda t: (t < 0.2) | (t > 0.6),
    "among": lambda t: t in (0.5, 1.0),
    "nonzero": lambda t: bool(t - 0.5),
    "whole": lambda t: round(t * 3) == 2,
    "pair": lambda t: (t, 2 * t) < (0.5, 1.0),
    "sum": lambda t: sum([t > 0.2, t > 0.6]) == 2,
}


@pytest.mark.slow
def test_comparisons() -> None:
    def forward(self: Any, x: Tensor, t: float) -> dict[str, Tensor]:
        y, found = self.fc(x), {}
        for name, comparison in COMPARISONS.items():
            truth = comparison(t)
            found[name] = y * (2 if truth is True else 1) * len(str(truth))
        return found

    as_in_eager(
        Calls(forward),
        lambda model: [_trained(model(torch.ones(3, 4), t)) for t in NUMBERS],
    )


def test_a_bool_of_a_number_read_from_a_tensor() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        y: Tensor = self.fc(x)
        above = float(y.detach().mean()) > 0
        print(end="")
        return y * 2 if above is True else y

    batches = torch.randn(8, 2, 4)
    as_in_eager(Calls(forward), lambda model: [_trained(model(x)) for x in batches])


def test_a_bool_of_an_attribute_and_of_the_time() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        late = time.time() > self.start
        result: Tensor = self.fc(x) * len(str(self.factor > 0.5)) * (2 if late is True else 1)
        return result

    def step(model: Any) -> list[Tensor]:
        found = []
        for i, factor in enumerate(NUMBERS):
            model.factor, model.start = factor, time.time() + (-1e3) ** (i + 1)
            found.append(_trained(model(torch.ones(3, 4))))
        return found

    as_in_eager(Calls(forward, factor=0.0, start=0.0), step)


def test_a_thousand_steps_with_a_comparison() -> None:
    def forward(self: Any, x: Tensor, t: float) -> Tensor:
        late = t > 0.5
        result: Tensor = self.fc(x) * t * (2 if late is True else 1)
        return result

    torch._dynamo.reset()
    module = Calls(forward)
    model = ORTModule(module, QUIET)
    x = torch.ones(3, 4)
    for i in range(1000):
        t = 0.0007 * i + 0.1
        assert torch.equal(model(x, t), module(x, t))
    assert_compiled(last_run_report(model), captures=3)


def test_other_backends_keep_their_captures() -> None:
    graphs = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    ORTModule(Calls(lambda self, x: self.fc(x)), QUIET)(torch.ones(3, 4))
    function = torch.compile(lambda x: x * (x.shape[0] > 3), backend=backend, dynamic=True)
    for size in (2, 5, 3):
        x = torch.ones(size)
        assert torch.equal(function(x), x * (size > 3))
    assert len(graphs) == 1
