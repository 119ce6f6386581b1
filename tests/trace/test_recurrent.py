"""Recurrent layers, whose operators depend on how their operands lie in memory."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ortmodule_py import _C, ORTModule, last_run_report


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], batch_first: bool) -> None:
        super().__init__()
        self.rnn = kind(4, 6, num_layers=2, batch_first=batch_first)

    def forward(self, x: Tensor) -> Tensor:
        return self.rnn(x.tanh())[0].sin()


@pytest.mark.parametrize(
    ("kind", "batch_first"), [(nn.GRU, False), pytest.param(nn.LSTM, True, marks=pytest.mark.slow)]
)
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
    ("kind", "bidirectional", "batch_first"),
    [
        pytest.param(nn.LSTM, True, False, marks=pytest.mark.slow),
        pytest.param(nn.GRU, True, False, marks=pytest.mark.slow),
        (nn.RNN, False, True),
    ],
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


@pytest.mark.parametrize(("kind", "batch"), [(nn.LSTM, 3), (nn.LSTM, 1), (nn.GRU, 1)])
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


@pytest.mark.slow
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


# ---- layers as operators -------------------------------------------------------------------------


class Tagger(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], **options: bool) -> None:
        super().__init__()
        self.rnn = kind(8, 12, num_layers=2, **options)
        self.head = nn.Linear(12 * (2 if options.get("bidirectional") else 1), 3)

    def forward(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        y, state = self.rnn(x, state)
        return self.head(y).square().mean(), state


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_one_capture_for_all_lengths(kind: type[nn.RNNBase]) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    module = Tagger(kind, bidirectional=True)
    exact = copy.deepcopy(module).double()
    model = ORTModule(module)
    for steps in (5, 9, 40, 2):
        x = torch.randn(steps, 3, 8)
        module.zero_grad()
        exact.zero_grad()
        model(x)[0].backward()
        exact(x.double())[0].backward()
        for mine, theirs in zip(module.parameters(), exact.parameters(), strict=True):
            torch.testing.assert_close(mine.grad.double(), theirs.grad, rtol=1e-4, atol=1e-6)
    report = last_run_report(model)
    assert report["captures"] == 1 and report["compiled"]


@pytest.mark.parametrize(
    ("kind", "options"),
    [(nn.LSTM, {}), (nn.GRU, {"bidirectional": True, "batch_first": True})],
)
def test_recomputed_gates_have_the_same_bits(
    kind: type[nn.RNNBase], options: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    module = Tagger(kind, **options)
    x = torch.randn(7, 11, 8)
    results, peaks = [], []
    for level in ("0", "1"):
        monkeypatch.setenv("ORTMODULE_MEMORY_OPT_LEVEL", level)
        torch._dynamo.reset()
        model = ORTModule(copy.deepcopy(module))
        loss, _ = model(x)
        loss.backward()
        results.append([loss, *(p.grad for p in model.parameters())])
        peaks.append(last_run_report(model)["planned_peak_bytes"])
    for kept, again in zip(*results, strict=True):
        assert torch.equal(kept, again)
    assert peaks[1] < peaks[0]


@pytest.mark.parametrize("kind", [nn.LSTM, nn.RNN])
def test_states_passed_from_part_to_part(kind: type[nn.RNNBase]) -> None:
    """Truncated backpropagation, and a gradient through the states of two parts."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    module = Tagger(kind)
    eager = copy.deepcopy(module)
    model = ORTModule(module)
    x = torch.randn(6, 3, 8)

    def losses(run: Any) -> Tensor:
        first, state = run(x[:4])
        second, state = run(x[4:], state)
        state = tuple(s.detach() for s in state) if isinstance(state, tuple) else state.detach()
        return first + second + run(x, state)[0]

    mine, theirs = losses(model), losses(eager)
    torch.testing.assert_close(mine, theirs)
    mine.backward()
    theirs.backward()
    for a, b in zip(module.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-6)
    assert last_run_report(model)["compiled"]


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_unbatched_and_without_biases(kind: type[nn.RNNBase]) -> None:
    torch._dynamo.reset()
    module = Tagger(kind, bias=False)
    eager = copy.deepcopy(module)
    model = ORTModule(module)
    x = torch.randn(6, 8, requires_grad=True)
    for run in (model, eager):
        loss, state = run(x)
        states = state if isinstance(state, tuple) else (state,)
        (loss + sum(s.sum() for s in states)).backward()
    for a, b in zip(module.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-6)
    assert last_run_report(model)["compiled"]


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_under_autocast(kind: type[nn.RNNBase]) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    module = Tagger(kind)
    eager = copy.deepcopy(module)
    model = ORTModule(module)
    x = torch.randn(6, 3, 8)
    results = []
    for run in (eager, model):
        with torch.autocast("cpu", torch.bfloat16):
            try:
                loss, state = run(x)
            except RuntimeError as error:
                if run is eager and "primitive descriptor" in str(error):
                    pytest.skip("oneDNN has no LSTM in bfloat16 for this processor")
                raise
        loss.float().backward()
        states = state if isinstance(state, tuple) else (state,)
        results.append([loss, *states, *(p.grad for p in run.parameters())])
    for theirs, mine in zip(*results, strict=True):
        assert mine.dtype == theirs.dtype
        torch.testing.assert_close(mine, theirs, rtol=0.05, atol=0.02)
    assert last_run_report(model)["compiled"]


class Frozen(nn.Module):
    """A layer that is not trained, from a state that is."""

    def __init__(self, kind: type[nn.RNNBase], **options: int) -> None:
        super().__init__()
        self.rnn = kind(4, 6, **options).requires_grad_(False)
        self.state = nn.Parameter(torch.randn(1, 2, options.get("proj_size", 6)))
        self.cell = nn.Parameter(torch.randn(1, 2, 6))

    def forward(self, x: Tensor) -> Tensor:
        states = (self.state, self.cell) if isinstance(self.rnn, nn.LSTM) else self.state
        return self.rnn(x, states)[0].sin().sum()


@pytest.mark.parametrize("emulated", ["0", "1"])
@pytest.mark.parametrize(
    ("kind", "options"), [(nn.LSTM, {}), (nn.LSTM, {"proj_size": 3}), (nn.GRU, {}), (nn.RNN, {})]
)
def test_states_of_frozen_layers(
    kind: type[nn.RNNBase], options: dict[str, int], emulated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody reads the gradients of the gates, which have no memory then."""
    if emulated == "1" and not _C.build_info()["cuda_emulation"]:
        pytest.skip("this build has no CUDA kernels for the host")
    monkeypatch.setenv("ORTMODULE_CUDA_EMULATION", emulated)
    torch._dynamo.reset()
    torch.manual_seed(0)
    module = Frozen(kind, **options)
    exact = copy.deepcopy(module)
    model = ORTModule(module)
    x = torch.randn(5, 2, 4)
    model(x).backward()
    exact(x).backward()
    assert last_run_report(model)["compiled"]
    for mine, theirs in zip(module.parameters(), exact.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-5)
