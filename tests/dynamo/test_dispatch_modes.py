"""A TorchDispatchMode around a call sees eager PyTorch, and leaves no trace behind it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from ortmodule_py import DebugOptions, LogLevel, ORTModule, last_run_report

QUIET = DebugOptions(LogLevel.ERROR)


class Net(nn.Module):
    """Code of its own, which Dynamo marks where it gives up."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x).tanh()


class Recorder(TorchDispatchMode):
    """Names of the operators that reach the dispatcher."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def step(model: nn.Module) -> None:
    model(torch.randn(3, 4)).sum().backward()


@pytest.mark.parametrize("captured_before", [True, False])
def test_the_mode_sees_each_operator(captured_before: bool) -> None:
    torch._dynamo.reset()
    model = ORTModule(Net(), QUIET)
    if captured_before:
        step(model)
    found = []
    for runner in (model.module, model):
        model.zero_grad()
        with Recorder() as mode:
            step(runner)
        found.append(mode.seen)
    assert found[0] == found[1] and "aten.tanh_backward.default" in found[1]
    report = last_run_report(model)
    assert not report["compiled"] and "TorchDispatchMode" in report["eager_pieces"][0]


def test_later_calls_and_modules_are_compiled() -> None:
    torch._dynamo.reset()
    model = ORTModule(Net(), QUIET)
    with Recorder():
        step(model)
    for later in (model, ORTModule(Net(), QUIET)):
        step(later)
        assert last_run_report(later)["compiled"]


def test_fake_tensors() -> None:
    """As somebody does who asks for the shapes or the memory of a step."""
    torch._dynamo.reset()
    with FakeTensorMode():
        model = ORTModule(Net(), QUIET)
        out = model(torch.randn(3, 4))
        out.sum().backward()
    assert out.shape == (3, 4) and model.fc.weight.grad.shape == (4, 4)


def test_selective_checkpoint_around() -> None:
    torch._dynamo.reset()
    model = ORTModule(Net(), QUIET)
    x = torch.randn(3, 4, requires_grad=True)

    def contexts() -> Any:
        return create_selective_checkpoint_contexts([torch.ops.aten.addmm.default])

    for _ in range(2):
        x.grad = None
        checkpoint(model, x, use_reentrant=False, context_fn=contexts).sum().backward()
    (expected,) = torch.autograd.grad(model.module(x).sum(), x)
    torch.testing.assert_close(x.grad, expected)
