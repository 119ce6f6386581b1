"""The second slice: gradients, memory and semantics of one difficult small model."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from ortmodule_py import ORTModule, last_run_report
from tests.compare import assert_gradients_close, exact_copy, gradients
from tests.difficult_model import DifficultModel, batch


def run(module: nn.Module, size: int, seed: int = 7) -> tuple[Tensor, Tensor]:
    """One forward and backward of the loss."""
    torch.manual_seed(seed)
    tokens, targets = batch(size)
    loss, logits = module(tokens, targets)
    loss.backward()
    return loss.detach(), logits.detach()


@pytest.fixture
def eager() -> nn.Module:
    torch.manual_seed(0)
    return DifficultModel(dropout=0.0)


@pytest.fixture(scope="module")
def captured() -> ORTModule:
    torch.manual_seed(0)
    return ORTModule(DifficultModel(dropout=0.0))


@pytest.fixture
def ours(captured: ORTModule, eager: nn.Module) -> ORTModule:
    """The same model as `eager`, captured once for all tests of the file."""
    captured.zero_grad()
    captured.load_state_dict(eager.state_dict())
    return captured


def check(eager: nn.Module, ours: ORTModule, size: int) -> None:
    exact = exact_copy(eager)
    reference = copy.deepcopy(eager)
    for module in (eager, ours.module, exact, reference):
        module.zero_grad()
    loss, logits = run(ours, size)
    want_loss, want_logits = run(reference, size)
    run(exact, size)
    torch.testing.assert_close(loss, want_loss, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(logits, want_logits, rtol=1e-4, atol=1e-4)
    assert_gradients_close(gradients(ours.module), gradients(reference), gradients(exact))
    for (name, buffer), want in zip(ours.module.named_buffers(), reference.buffers(), strict=True):
        torch.testing.assert_close(buffer, want, msg=name)


SIZES = [4, *(pytest.param(size, marks=pytest.mark.slow) for size in (3, 1))]


@pytest.mark.parametrize("size", SIZES)
def test_gradients_at_batch_sizes(eager: nn.Module, ours: ORTModule, size: int) -> None:
    check(eager, ours, size)


def test_one_capture_serves_batch_sizes_and_every_stage_verifies(
    eager: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORTMODULE_VERIFY", "1")
    ours = ORTModule(copy.deepcopy(eager))
    check(eager, ours, 3)
    for size in (4, 5, 2):
        run(ours, size)
    report = last_run_report(ours)
    assert report["captures"] == 1
    assert report["plans"] == 4
    assert report["compiled"]


@pytest.mark.slow
def test_accumulation_over_two_backwards(eager: nn.Module, ours: ORTModule) -> None:
    for _ in range(2):
        run(ours, 4)
        run(eager, 4)
    for name, p in eager.named_parameters():
        torch.testing.assert_close(
            ours.module.get_parameter(name).grad, p.grad, rtol=1e-4, atol=1e-5
        )


@pytest.mark.slow
def test_retain_graph_then_second_backward(ours: ORTModule) -> None:
    tokens, targets = batch(4)
    loss, _ = ours(tokens, targets)
    loss.backward(retain_graph=True)
    first = gradients(ours.module)
    loss.backward()
    for name, grad in gradients(ours.module).items():
        assert grad is not None and torch.equal(grad, 2 * first[name]), name
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


@pytest.mark.slow
def test_gradient_through_both_outputs(eager: nn.Module, ours: ORTModule) -> None:
    tokens, targets = batch(4)
    for module in (eager, ours):
        loss, logits = module(tokens, targets)
        (loss + logits.square().mean()).backward()
    for name, p in eager.named_parameters():
        torch.testing.assert_close(
            ours.module.get_parameter(name).grad, p.grad, rtol=1e-4, atol=1e-5
        )


@pytest.mark.slow
def test_only_the_second_output_gets_a_gradient(eager: nn.Module, ours: ORTModule) -> None:
    tokens, targets = batch(4)
    for module in (eager, ours):
        _, logits = module(tokens, targets)
        logits.square().mean().backward()
    for name, p in eager.named_parameters():
        torch.testing.assert_close(
            ours.module.get_parameter(name).grad, p.grad, rtol=1e-4, atol=1e-5
        )


@pytest.mark.slow
def test_bf16_autocast(eager: nn.Module) -> None:
    ours = ORTModule(copy.deepcopy(eager))
    exact = exact_copy(eager)
    run(exact, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        run(ours, 4)
        run(eager, 4)
    assert_gradients_close(gradients(ours.module), gradients(eager), gradients(exact), floor=2e-2)


@pytest.mark.slow
def test_dropout_follows_the_seed() -> None:
    torch.manual_seed(0)
    ours = ORTModule(DifficultModel(dropout=0.1))
    first, _ = run(ours, 4, seed=3)
    grads = gradients(ours.module)
    ours.module.zero_grad()
    second, _ = run(ours, 4, seed=3)
    assert torch.equal(first, second)
    for name, grad in gradients(ours.module).items():
        assert torch.equal(grad, grads[name]), name  # type: ignore[arg-type]
    third, _ = run(ours, 4, seed=4)
    assert not torch.equal(first, third)


def test_planned_peak_is_the_measured_peak(ours: ORTModule) -> None:
    for _ in range(2):
        run(ours, 4)
    report = last_run_report(ours)
    assert report["planned_peak_bytes"] == report["measured_peak_bytes"] > 0
