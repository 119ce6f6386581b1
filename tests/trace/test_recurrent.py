"""Recurrent layers, whose operators depend on how their operands lie in memory."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from ortmodule_py import ORTModule, last_run_report


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], batch_first: bool) -> None:
        super().__init__()
        self.rnn = kind(4, 6, num_layers=2, batch_first=batch_first)

    def forward(self, x: Tensor) -> Tensor:
        return self.rnn(x.tanh())[0].sin()


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("batch_first", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_values_and_gradients(kind: type[nn.RNNBase], batch_first: bool) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    module = Recurrent(kind, batch_first)
    exact = copy.deepcopy(module).double()
    model = ORTModule(module)
    x = torch.randn(3, 5, 4)
    ours, wanted = model(x), exact(x.double())
    torch.testing.assert_close(ours.double(), wanted, rtol=1e-5, atol=1e-5)
    ours.square().sum().backward()
    wanted.square().sum().backward()
    for (name, mine), theirs in zip(module.named_parameters(), exact.parameters(), strict=True):
        assert mine.grad is not None and theirs.grad is not None, name
        torch.testing.assert_close(mine.grad.double(), theirs.grad, rtol=1e-4, atol=1e-5, msg=name)
    assert last_run_report(model)["compiled"]
    with torch.no_grad():
        torch.testing.assert_close(model(x).double(), exact(x.double()), rtol=1e-5, atol=1e-5)


class Stacked(nn.Module):
    """Three layers with dropout between them, and their last states."""

    def __init__(self, kind: type[nn.RNNBase], dropout: float = 0.5, **options: bool) -> None:
        super().__init__()
        self.rnn = kind(4, 6, num_layers=3, dropout=dropout, **options)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y, final = self.rnn(x)
        return y, *(final if isinstance(final, tuple) else (final,))


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(nn.LSTM, marks=pytest.mark.slow),
        pytest.param(nn.GRU, marks=pytest.mark.slow),
        nn.RNN,
    ],
)
@pytest.mark.parametrize(
    ("bidirectional", "batch_first"),
    [(False, True), pytest.param(True, False, marks=pytest.mark.slow)],
)
def test_dropout_between_layers(
    kind: type[nn.RNNBase], bidirectional: bool, batch_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's Python kernels of stacked layers leave it out."""
    monkeypatch.setenv("ORTMODULE_RNG", "torch")
    torch._dynamo.reset()
    torch.manual_seed(0)
    eager = Stacked(kind, bidirectional=bidirectional, batch_first=batch_first)
    module = copy.deepcopy(eager)
    model = ORTModule(module)
    x = torch.randn(3, 5, 4)
    for mode in (True, False):
        eager.train(mode)
        model.train(mode)
        results = []
        for run in (eager, model):
            torch.manual_seed(3)
            run.zero_grad()
            outputs = run(x)
            sum(value.square().sum() for value in outputs).backward()
            results.append(outputs)
        for mine, wanted in zip(results[1], results[0], strict=True):
            torch.testing.assert_close(mine, wanted, rtol=1e-5, atol=1e-5)
        for (name, mine), theirs in zip(module.named_parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-5, msg=name)
    assert last_run_report(model)["compiled"]


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("batch", [3, 1])
def test_last_states(kind: type[nn.RNNBase], batch: int) -> None:
    """torch 2.11 says that those of an LSTM have a dimension more."""
    torch._dynamo.reset()
    module = Stacked(kind, dropout=0.0, bidirectional=True)
    model = ORTModule(module)
    x = torch.randn(5, batch, 4)
    for mine, wanted in zip(model(x), module(x), strict=True):
        torch.testing.assert_close(mine, wanted)
    assert last_run_report(model)["compiled"]


class Cells(nn.Module):
    """As many values in one operator as there are steps."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        h, rows = x.new_zeros(x.shape[0], 4), []
        for part in x.unbind(1):
            h = self.cell(part, h)
            rows.append(h)
        return torch.stack(rows, 1)


def test_many_steps() -> None:
    torch.manual_seed(0)
    eager = Cells()
    ours = ORTModule(copy.deepcopy(eager))
    x = torch.randn(2, 70, 3, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    eager(x).square().sum().backward()
    ours(y).square().sum().backward()
    assert last_run_report(ours)["compiled"]
    torch.testing.assert_close(y.grad, x.grad)
    for p, q in zip(eager.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(q.grad, p.grad)
