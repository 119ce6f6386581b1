"""ORTMODULE_CUDA_GRAPH=1: steps that are recorded once and replayed.

On machines without a GPU the CUDA kernels run on the host, and what replays them is a log of their
calls, with the addresses of the recording and memory that all recordings of a piece share, as a graph's
are. Only the recording of the launches themselves needs a GPU; `tools/gpu_check` has it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from ortmodule_py import _C, ORTModule, last_run_report

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = pytest.mark.skipif(
    DEVICE == "cpu" and not _C.build_info()["cuda_emulation"],
    reason="this build lacks the CUDA kernels compiled for the host, and there is no GPU",
)


@pytest.fixture(autouse=True)
def graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_CUDA_GRAPH", "1")
    if DEVICE == "cpu":
        monkeypatch.setenv("ORTMODULE_CUDA_EMULATION", "1")


class Net(nn.Module):
    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 12, bias=False), nn.Linear(12, 5)
        self.norm = nn.BatchNorm1d(12)
        self.drop = nn.Dropout(p)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.second(self.drop(torch.tanh(self.norm(self.first(x)))))
        return y


def pair(p: float = 0.0, make: Callable[[], nn.Module] | None = None) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    eager = (make() if make else Net(p)).to(DEVICE)
    return eager, ORTModule(copy.deepcopy(eager))


def batch(seed: int, rows: int = 7) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 6, generator=generator).to(DEVICE)


def counts(model: Any) -> dict[str, Any]:
    found: dict[str, Any] = last_run_report(model)["cuda_graphs"]
    return found


def same_state(model: nn.Module, eager: nn.Module) -> None:
    for (name, found), expected in zip(
        model.state_dict().items(), eager.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(found, expected, msg=lambda text, n=name: f"{n}: {text}")


def test_training_goes_as_in_eager() -> None:
    eager, model = pair()
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (eager, model)]
    kept: list[tuple[torch.Tensor, torch.Tensor]] = []
    for step in range(8):
        x = batch(step)
        outputs = [m(x) for m in (eager, model)]
        for output, optimizer in zip(outputs, optimizers, strict=True):
            output.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        kept.append((outputs[0].detach(), outputs[1].detach()))
    # Results of earlier steps are the caller's, whatever was replayed since.
    for expected, found in kept:
        torch.testing.assert_close(found, expected)
    same_state(model, eager)
    assert counts(model) == {"recorded": 1, "replayed": 6, "in_flight": 0, "refused": []}


def test_the_gradients_are_the_callers() -> None:
    eager, model = pair()
    collected: list[list[torch.Tensor]] = []
    for step in range(4):
        for m in (eager, model):
            m(batch(step)).square().sum().backward()
        collected.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    for found, expected in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad)
    assert len(collected[0]) == len(list(model.parameters()))
    assert counts(model)["replayed"] == 2


def test_inputs_that_need_gradients() -> None:
    eager, model = pair()
    for step in range(4):
        found, expected = batch(step).requires_grad_(), batch(step).requires_grad_()
        model(found).square().sum().backward()
        eager(expected).square().sum().backward()
        torch.testing.assert_close(found.grad, expected.grad)
    assert counts(model)["replayed"] == 2


def test_other_shapes_have_recordings_of_their_own() -> None:
    eager, model = pair()
    for step in range(12):
        x = batch(step, rows=5 + step % 3)
        for m in (eager, model):
            m(x).square().sum().backward()
    for found, expected in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad, rtol=1e-4, atol=1e-4)
    same_state(model, eager)
    assert counts(model)["recorded"] == 3
    assert counts(model)["replayed"] == 12 - 2 * 3


def test_two_forwards_in_flight() -> None:
    eager, model = pair()
    for step in range(5):
        for m in (eager, model):
            first, second = m(batch(step)), m(batch(100 + step))
            first.square().sum().backward()
            second.square().sum().backward()
    for found, expected in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad, rtol=1e-4, atol=1e-4)
    assert counts(model)["in_flight"] > 0


def test_a_retained_graph() -> None:
    eager, model = pair()
    for step in range(7):
        for m in (eager, model):
            loss = m(batch(step)).square().sum()
            loss.backward(retain_graph=True)
            loss.backward()
    for found, expected in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad, rtol=1e-4, atol=1e-4)
    assert counts(model)["refused"], "no plan is recorded whole, and that is said"


def test_a_graph_retained_after_recording() -> None:
    eager, model = pair()
    for step in range(6):
        for m in (eager, model):
            loss = m(batch(step)).square().sum()
            if step > 3:
                loss.backward(retain_graph=True)
            loss.backward()
    for found, expected in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad, rtol=1e-4, atol=1e-4)
    assert counts(model)["replayed"] == 4


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.left, self.right = nn.Linear(6, 6), nn.Linear(6, 3), nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = torch.tanh(self.trunk(x))
        return self.left(h), self.right(h)


def test_backward_from_one_of_two_outputs() -> None:
    eager, model = pair(make=TwoHeads)
    for step in range(6):
        for m in (eager, model):
            left, right = m(batch(step))
            loss = left.square().sum()
            if step < 4:
                loss = loss + right.square().sum()
            loss.backward()
    for found, expected in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad)
    assert counts(model)["replayed"] == 4


def test_dropout_draws_anew_with_each_replay() -> None:
    _, model = pair(p=0.5)
    x = batch(0)
    torch.manual_seed(3)
    outputs = [model(x) for _ in range(1)]
    for _ in range(4):
        outputs.append(model(x))
        outputs[-1].sum().backward()
    assert counts(model)["replayed"] >= 2
    different = {tuple(output.detach().flatten().tolist()) for output in outputs}
    assert len(different) == len(outputs)


def test_dropout_of_backward_is_that_of_its_forward() -> None:
    """The gradient of the sum with respect to x is zero exactly where x was dropped."""
    torch.manual_seed(0)
    model: Any = ORTModule(nn.Dropout(0.5).to(DEVICE))
    for _ in range(5):
        x = torch.ones(64, 16, device=DEVICE, requires_grad=True)
        y = model(x)
        y.sum().backward()
        assert torch.equal(x.grad, y.detach())
    assert counts(model)["replayed"] == 3


def test_a_seed_repeats_replayed_steps() -> None:
    _, model = pair(p=0.5)
    for step in range(3):
        model(batch(step)).sum().backward()
    model.zero_grad()
    found = []
    for _ in range(2):
        torch.manual_seed(11)
        model(batch(5)).square().sum().backward()
        found.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        model.zero_grad()
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_parameters_that_move_are_recorded_again() -> None:
    eager, model = pair()
    for step in range(6):
        if step == 4:
            for m in (eager, model):
                for p in m.parameters():
                    p.data = p.data.clone() * 2
        for m in (eager, model):
            m.zero_grad()
            m(batch(step)).square().sum().backward()
        for found, expected in zip(model.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(found.grad, expected.grad, rtol=1e-4, atol=1e-4)
    assert counts(model)["recorded"] == 2


def test_parameters_that_always_move_are_not_recorded_for_ever() -> None:
    eager, model = pair()
    for step in range(24):
        for m in (eager, model):
            for p in m.parameters():
                p.data = p.data.clone()
            m.zero_grad()
            m(batch(step)).square().sum().backward()
    for found, expected in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad)
    # The allocator may give a parameter its former place back, so that a step in between replays.
    report = counts(model)
    assert report["recorded"] <= 10
    if report["replayed"] < 10:
        assert report["refused"] == ["parameters or buffers move from step to step"]


def test_evaluation_is_replayed() -> None:
    eager, model = pair()
    eager.eval()
    model.eval()
    with torch.no_grad():
        results = [(model(batch(step)), eager(batch(step))) for step in range(5)]
    for found, expected in results:
        torch.testing.assert_close(found, expected)
    assert counts(model)["replayed"] == 3


def test_evaluation_between_training_steps() -> None:
    eager, model = pair()
    for step in range(6):
        for m in (eager, model):
            m.train()
            m(batch(step)).square().sum().backward()
        for m in (eager, model):
            m.eval()
        with torch.no_grad():
            torch.testing.assert_close(model(batch(step)), eager(batch(step)))
    same_state(model, eager)
    for found, expected in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad, rtol=1e-4, atol=1e-4)


def test_a_forward_without_backward_frees_the_graphs() -> None:
    eager, model = pair()
    for step in range(8):
        for m in (eager, model):
            m.zero_grad()
            output = m(batch(step))
            if step != 5:
                output.square().sum().backward()
            del output
    for found, expected in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad)
    assert counts(model) == {"recorded": 1, "replayed": 6, "in_flight": 0, "refused": []}


def test_saved_tensors_that_hooks_moved() -> None:
    eager, model = pair()
    for step in range(5):
        for m in (eager, model):
            m.zero_grad()
            with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
                loss = m(batch(step)).square().sum()
            loss.backward()
        for found, expected in zip(model.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(found.grad, expected.grad)


def test_an_output_changed_before_backward_is_an_error() -> None:
    class Exp(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.exp(x * self.scale)

    _, model = pair(make=Exp)
    for step in range(4):
        model(batch(step)).sum().backward()
    output = model(batch(9))
    output.detach().zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


def test_an_argument_changed_in_place_is_refused_by_name() -> None:
    class Adds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 6)

        def forward(self, x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
            seen.add_(1.0)
            return self.linear(x)

    _, model = pair(make=Adds)
    seen = torch.zeros(3, device=DEVICE)
    for step in range(4):
        model(batch(step), seen).sum().backward()
    assert torch.equal(seen, torch.full_like(seen, 4.0))
    assert counts(model)["refused"] == ["an argument of the module is changed in place"]


def test_pieces_behind_a_graph_break() -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = torch.tanh(self.first(x))
            torch._dynamo.graph_break()
            y: torch.Tensor = self.second(x)
            return y

    eager, model = pair(make=Broken)
    for step in range(5):
        for m in (eager, model):
            m.zero_grad()
            m(batch(step)).square().sum().backward()
        for found, expected in zip(model.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(found.grad, expected.grad)
    assert counts(model)["replayed"] == 6


def test_the_peak_is_that_of_the_recording() -> None:
    _, model = pair()
    model(batch(0)).sum().backward()
    step_by_step = last_run_report(model)["measured_peak_bytes"]
    for step in range(4):
        model(batch(step)).sum().backward()
        assert last_run_report(model)["measured_peak_bytes"] == step_by_step


def test_a_memory_budget_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_BUDGET", "activations:60%")
    with pytest.raises(ValueError, match=r"ORTMODULE_CUDA_GRAPH.*unset one of them"):
        ORTModule(Net())


@pytest.mark.skipif(DEVICE == "cuda", reason="asks for a module on the CPU")
def test_a_device_without_graphs_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("ORTMODULE_CUDA_EMULATION")
    _, model = pair()
    for step in range(3):
        model(batch(step)).sum().backward()
    assert counts(model)["refused"] == ["steps on cpu cannot be recorded as CUDA graphs"]
    assert capsys.readouterr().err.count("[ORTMODULE_CUDA_GRAPH] steps run one by one") == 1
