"""The CTC loss in forward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from ortmodule_py import ORTModule
from tests.semantics import QUIET, Calls, as_in_eager, assert_compiled, assert_whole

TARGETS = torch.tensor([[1, 2, 3], [2, 2, 1], [3, 1, 1]])
LENGTHS = torch.tensor([3, 2, 0])


def _trained(step_of: Any, loss: Any) -> Any:
    def forward(self: Any, x: Tensor, *lengths: Any) -> Tensor:
        return loss(self.fc(x).log_softmax(-1).transpose(0, 1), *lengths)

    def step(model: Any) -> list[Tensor]:
        results = []
        for steps in (6, 8, 7):
            x = torch.linspace(-1, 1, 12 * steps).sin().view(3, steps, 4)
            y = step_of(model, x, torch.tensor([steps, steps - 1, steps - 2]))
            y.sum().backward()
            results.append(y)
        return results

    return as_in_eager(Calls(forward), step)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_it_stays_in_the_graph(reduction: str) -> None:
    report = _trained(
        lambda model, x, steps: model(x, TARGETS, steps, LENGTHS),
        lambda scores, *given: functional.ctc_loss(scores, *given, reduction=reduction),
    )
    assert_compiled(report, 2)
    assert not report["graph_breaks"]


def test_targets_in_one_row_without_cudnn() -> None:
    """As Wav2Vec2 of transformers calls it: the targets are chosen by a mask."""

    def loss(scores: Tensor, labels: Tensor, steps: Tensor) -> Tensor:
        kept = labels > 0
        with torch.backends.cudnn.flags(enabled=False):
            return functional.ctc_loss(
                scores, labels.masked_select(kept), steps, kept.sum(-1), zero_infinity=True
            )

    labels = TARGETS.clone()
    labels[1, 2:] = -100
    assert_whole(_trained(lambda model, x, steps: model(x, labels, steps), loss), 2)


def test_targets_that_do_not_fit() -> None:
    """Two equal letters need a blank between them: the loss is infinite, or zero if that is asked for."""

    def step_of(model: Any, x: Tensor, steps: Tensor) -> Tensor:
        return model(x, torch.ones(3, 3, dtype=torch.int64), steps - 4, torch.full((3,), 3))

    for reduction in ("none", "mean"):
        report = _trained(
            step_of,
            lambda scores, *given, r=reduction: functional.ctc_loss(
                scores, *given, reduction=r, zero_infinity=True
            ),
        )
        assert_compiled(report, 2)


def test_lengths_in_a_list_break_the_graph() -> None:
    report = _trained(
        lambda model, x, steps: model(x, TARGETS, steps.tolist(), LENGTHS.tolist()),
        functional.ctc_loss,
    )
    assert report["graph_breaks"]


def test_it_has_no_second_derivative() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        scores = self.fc(x).log_softmax(-1).transpose(0, 1)
        return functional.ctc_loss(scores, TARGETS, torch.tensor([6, 6, 6]), LENGTHS)

    for model in (Calls(forward), ORTModule(Calls(forward), QUIET)):
        x = torch.ones(3, 6, 4, requires_grad=True)
        with pytest.raises(RuntimeError):
            (gradient,) = torch.autograd.grad(model(x), x, create_graph=True)
            gradient.square().sum().backward()


def test_evaluation() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        scores = self.fc(x).log_softmax(-1).transpose(0, 1)
        return functional.ctc_loss(scores, TARGETS, torch.full((3,), x.shape[1]), LENGTHS)

    def step(model: Any) -> Tensor:
        with torch.no_grad():
            return model(torch.ones(3, 6, 4))

    assert_compiled(as_in_eager(Calls(forward), step))
