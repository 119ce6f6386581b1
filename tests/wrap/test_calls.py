"""How a module is called: arguments, outputs, the order of forwards and backwards."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import sys
from collections import namedtuple
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ortmodule_py import ORTModule
from tests.semantics import QUIET, Calls, as_in_eager, assert_compiled

Pair = namedtuple("Pair", "first second")


@dataclasses.dataclass
class Output:
    loss: Tensor
    states: list[Tensor]
    note: str = "kept"


def _nested(
    self: Any, batch: dict[str, Any], rest: list[Any], *, scale: float = 2.0
) -> dict[str, Any]:
    y = self.fc(batch["x"]) + rest[0][1]
    return {"y": y, "list": [y * scale, (y.tanh(), None)], "pair": Pair(y.sum(), 3)}


def test_nested_inputs_and_outputs() -> None:
    def step(model: Any) -> Any:
        out = model({"x": torch.ones(3, 4)}, [(1, torch.ones(3, 4))], scale=3.0)
        (out["y"].sum() + out["list"][1][0].sum() + out["pair"].first).backward()
        return out

    assert_compiled(as_in_eager(Calls(_nested), step))


def test_dataclasses() -> None:
    def forward(self: Any, given: Output) -> Output:
        y = self.fc(given.loss) + given.states[0]
        return Output(y.sum(), [y, y * 2], given.note)

    def step(model: Any) -> Output:
        out: Output = model(Output(torch.ones(3, 4), [torch.ones(3, 4)], "said"))
        out.loss.backward()
        return out

    assert_compiled(as_in_eager(Calls(forward), step))


def test_outputs_of_transformers() -> None:
    outputs = pytest.importorskip("transformers.modeling_outputs")

    def forward(self: Any, x: Tensor) -> Any:
        y = self.fc(x)
        return outputs.SequenceClassifierOutput(loss=y.sum(), logits=y, hidden_states=(y, y * 2))

    def step(model: Any) -> Any:
        out = model(torch.ones(3, 4))
        out.loss.backward()
        assert out[0] is out.loss
        return out

    assert_compiled(as_in_eager(Calls(forward), step))


def test_keyword_and_default_arguments() -> None:
    def forward(
        self: Any, x: Tensor, y: Tensor | None = None, *, flag: bool = False, scale: int = 1
    ) -> Tensor:
        z = self.fc(x) if y is None else self.fc(x) + y
        return z * scale if flag else z

    def step(model: Any) -> Any:
        x = torch.ones(3, 4)
        return [
            model(x),
            model(x, x),
            model(y=x, x=x),
            model(x, flag=True, scale=2),
            model(x, None),
        ]

    assert as_in_eager(Calls(forward), step)["compiled"]


def test_backward_in_any_order() -> None:
    def step(model: Any) -> Any:
        losses = [model(torch.full((rows, 4), 0.1 * rows)).square().sum() for rows in (3, 2, 4)]
        for i in (1, 2, 0):
            losses[i].backward()
        return losses

    assert_compiled(as_in_eager(Calls(lambda self, x: self.fc(x).tanh()), step))


def test_applied_to_its_own_output() -> None:
    def step(model: Any) -> Any:
        y = model(model(model(torch.ones(3, 4))))
        y.sum().backward()
        return y

    assert_compiled(as_in_eager(Calls(lambda self, x: self.fc(x).tanh()), step), captures=2)


def test_inputs_that_require_a_gradient() -> None:
    def step(model: Any) -> Any:
        gradients = []
        for requires in (True, False, True):
            x = torch.ones(3, 4, requires_grad=requires)
            w = torch.ones(3, 4, requires_grad=True)
            y = model(x, w * 2)
            y.retain_grad()
            y.sum().backward()
            gradients += [x.grad, w.grad, y.grad]
        return gradients

    report = as_in_eager(Calls(lambda self, x, w: self.fc(x * w).tanh()), step)
    assert_compiled(report, captures=2)


def test_empty_batches() -> None:
    layers = nn.Sequential(
        nn.Linear(4, 4), nn.LayerNorm(4), nn.GELU(), nn.Dropout(0.0), nn.Softmax(-1)
    )

    def step(model: Any) -> Any:
        found = []
        for rows in (3, 0, 2, 0, 1):
            x = torch.ones(rows, 4, requires_grad=True)
            y = model(x)
            (y.sum() + y.mean()).backward()
            found += [y, x.grad]
        return found

    assert_compiled(as_in_eager(layers, step), captures=3)


def test_a_mean_over_nothing() -> None:
    def step(model: Any) -> Any:
        return [model(torch.ones(rows, 4)) for rows in (3, 0, 2)]

    assert_compiled(as_in_eager(Calls(lambda self, x: self.fc(x).mean()), step), captures=2)


# ---- the wrapper as the original ------------------------------------------------------------------


class Documented(nn.Module):
    def forward(self, tokens: Tensor, *, labels: Tensor | None = None) -> Tensor:
        return tokens * 2


def test_the_signature_is_the_originals() -> None:
    model = ORTModule(Documented(), QUIET)
    want = inspect.signature(Documented().forward)
    assert inspect.signature(model.forward) == inspect.signature(model) == want
    copied = copy.deepcopy(model)
    assert torch.equal(copied.forward(torch.ones(2)), torch.full((2,), 2.0))


def test_calls_of_small_models_take_little_python() -> None:
    """Around the guards and the piece, every Python call is time that eager does not take."""
    model = ORTModule(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), QUIET)
    for rows in (3, 5, 4):
        model(torch.ones(rows, 3)).sum().backward()
    calls: list[str] = []

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call":
            calls.append(frame.f_code.co_name)

    x = torch.ones(6, 3)
    sys.setprofile(note)
    try:
        model(x)
    finally:
        sys.setprofile(None)
    assert len(calls) < 100, calls
