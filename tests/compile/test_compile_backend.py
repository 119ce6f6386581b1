"""What `torch.compile(model, backend="ortmodule")` says, and the class of a wrapped model."""

from __future__ import annotations

import inspect
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ortmodule_py import ORTModule
from tests.fresh_process import run

SCRIPT = """
import torch
from torch import nn
from ortmodule_py.dynamo import progress

progress.AFTER_SECONDS = {after}

class Broken(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        x = self.fc(x)
        torch._dynamo.graph_break()
        return self.fc(x)

for _ in range(2):
    compiled = torch.compile(Broken(), backend="ortmodule", dynamic=False)
    for batch in (2, 3):
        compiled(torch.randn(batch, 4)).sum().backward()
"""
STATUS = "capturing the model takes a while: "


def _said(after: float, **variables: str) -> list[str]:
    finished = run(SCRIPT.format(after=after), **variables)
    assert finished.returncode == 0, finished.stderr
    return [line for line in finished.stderr.splitlines() if line.startswith("ortmodule_py: ")]


@pytest.mark.slow
def test_notices_are_given_once() -> None:
    said = _said(600.0, ORTMODULE_SKIPCHECK_POLICY="x", ORTMODULE_MEMORY_OPT_LEVLE="1")
    assert len(said) == 3, said
    assert "must have a known name, but found ORTMODULE_MEMORY_OPT_LEVLE" in said[0]
    assert "ORTMODULE_SKIPCHECK_POLICY has no effect" in said[1]
    assert "the graph breaks here" in said[2] and "<string>" in said[2]


@pytest.mark.slow
def test_a_long_capture_and_the_log_level() -> None:
    # Dynamo's own part, before the backend is asked, is far longer than this.
    assert any(STATUS in line for line in _said(0.001))
    said = _said(600.0, ORTMODULE_LOG_LEVEL="INFO")
    assert sum("captured piece" in line for line in said) >= 4
    assert _said(0.001, ORTMODULE_LOG_LEVEL="ERROR") == []


class Classifier(nn.Module):
    """Says what its classes are."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, inputs: Tensor, labels: Tensor | None = None) -> Any:
        """Scores."""
        return self.fc(inputs)


class Own(ORTModule):
    """A subclass of a user."""


def test_the_class_has_the_signature_of_the_originals() -> None:
    """As Trainer finds the names of the labels."""
    for base in (ORTModule, Own):
        model = base(Classifier())
        found = inspect.signature(type(model).forward)
        assert list(found.parameters) == ["self", "inputs", "labels"]
        assert "Classifier" in type(model).__name__
        assert isinstance(model, base) and type(model.module) is Classifier
        assert type(base(Classifier())) is type(model)
        assert type(pickle.loads(pickle.dumps(model))) is type(model)
        assert type(model)(nn.Linear(2, 2)).weight.shape == (2, 2)
        model(torch.ones(3, 4)).sum().backward()
        assert model.fc.weight.grad is not None
