"""Dynamo's limit of captures ends in a report and in eager PyTorch, not in an error or in silence."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import Tensor, nn

from ortmodule_py import ORTModule, last_run_report
from ortmodule_py.dynamo import settings


class Spelled(nn.Module):
    """Every word is a capture of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor, word: str) -> Tensor:
        return x * self.w * len(word)


def test_the_limit_is_counted_and_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(settings, "CAPTURES_PER_FUNCTION", 3)
    torch._dynamo.reset()
    model = ORTModule(Spelled())
    for logger in (model._logger, logging.getLogger("torch._dynamo.convert_frame")):
        logger.addHandler(caplog.handler)
    x = torch.randn(3, 4)
    for length in range(1, 9):
        model.zero_grad()
        out = model(x, "a" * length)
        out.sum().backward()
        torch.testing.assert_close(out, x * length)
        torch.testing.assert_close(model.w.grad, x.sum(0) * length)
        if length == 3:
            assert last_run_report(model)["compiled"]
    report = last_run_report(model)
    assert not report["compiled"] and len(report["eager_pieces"]) == 1
    assert "captured 3 times" in report["eager_pieces"][0]
    said = [r for r in caplog.records if "runs in eager" in r.getMessage()]
    assert len(said) == 1 and said[0].levelno >= logging.WARNING
    dynamo = {id(r) for r in caplog.records if "hit config.recompile_limit" in r.getMessage()}
    assert len(dynamo) <= 1
    # What was captured before still runs in the engine.
    torch.testing.assert_close(model(x, "aa"), x * 2)
    assert report["captures"] == 4


class Counting(nn.Module):
    """Counts its calls in front of a graph break, behind which every word is a capture."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.word = "a"
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        y = self.fc(x)
        torch._dynamo.graph_break()
        return y * len(self.word)


def test_what_ran_before_the_limit_does_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "CAPTURES_PER_FUNCTION", 3)
    torch._dynamo.reset()
    model = ORTModule(Counting())
    x = torch.ones(2, 4)
    for n in range(1, 7):
        model.word = "a" * n
        torch.testing.assert_close(model(x), model.fc(x) * n)
        assert model.seen == n
    assert "captured 3 times" in last_run_report(model)["eager_pieces"][-1]
