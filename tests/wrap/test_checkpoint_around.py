"""`torch.utils.checkpoint` and other hooks on saved tensors around an ORTModule: its forward runs again in backward."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ortmodule_py import DebugOptions, LogLevel, ORTModule, last_run_report


class Block(nn.Module):
    """A gradient that is traced (of the recurrent layer), and one that draws random numbers."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.recurrent = nn.GRU(6, 8, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(8, 6)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.out(self.dropout(self.recurrent(x)[0]).tanh())


def gradients(block: nn.Module, run: Callable[[nn.Module, Tensor], Tensor]) -> list[Tensor]:
    """Of one step: the output, the input's gradient, the parameters' ones."""
    torch.manual_seed(3)
    x = torch.randn(3, 4, 6, requires_grad=True)
    block.zero_grad()
    out = run(block, x)
    out.float().square().sum().backward()
    grads = [p.grad for p in block.parameters()]
    assert x.grad is not None
    return [out.detach(), x.grad, *(g for g in grads if g is not None)]


def wrapped(block: nn.Module) -> ORTModule:
    return ORTModule(block, DebugOptions(LogLevel.ERROR))


@pytest.mark.parametrize(
    ("use_reentrant", "rng", "seen"),  # each pair of values once
    [(False, "", False), (False, "torch", True), (True, "", True), (True, "torch", False)],
)
def test_the_same_masks_and_gradients(
    use_reentrant: bool, rng: str, seen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether or not the module has run before, and so was captured outside of the checkpoint."""
    monkeypatch.setenv("ORTMODULE_RNG", rng)
    torch.manual_seed(0)
    block = Block(dropout=0.5)
    plain, model = wrapped(copy.deepcopy(block)), wrapped(block)
    if seen:
        gradients(model, lambda m, x: m(x))
    expected = gradients(plain, lambda m, x: m(x))
    for _ in range(3):
        found = gradients(model, lambda m, x: checkpoint(m, x, use_reentrant=use_reentrant))
        for a, b in zip(found, expected, strict=True):
            assert torch.equal(a, b)
    assert last_run_report(model)["eager_pieces"] == []


def test_between_layers_of_eager_pytorch() -> None:
    """The checkpoint records these, too, from within the engine's node of the autograd graph."""
    torch.manual_seed(0)
    before, after, block = nn.Linear(6, 6), nn.Linear(6, 6), Block()
    model = wrapped(copy.deepcopy(block))

    def run(m: nn.Module, x: Tensor) -> Tensor:
        return checkpoint(nn.Sequential(before, m, after), x, use_reentrant=False)

    for _ in range(2):
        results = []
        for one in (block, model):
            for layer in (before, after):
                layer.zero_grad()
            found = gradients(one, run)
            results.append(
                found + [p.grad for p in (before.weight, after.weight) if p.grad is not None]
            )
        for a, b in zip(*results, strict=True):
            torch.testing.assert_close(a, b)


def test_under_autocast() -> None:
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 6))
    model = wrapped(copy.deepcopy(block))
    head = nn.Linear(6, 6)

    def run(m: nn.Module, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return checkpoint(lambda t: m(head(t)), x, use_reentrant=False)

    for _ in range(2):
        head.zero_grad()
        expected = gradients(block, run)
        head.zero_grad()
        found = gradients(model, run)
        for a, b in zip(found, expected, strict=True):
            assert a.dtype == b.dtype
            torch.testing.assert_close(a, b, atol=0.03, rtol=0.03)


def test_saved_tensors_on_the_cpu() -> None:
    """The capture is not among what the hooks see; what the step keeps of its arguments is."""
    torch.manual_seed(0)
    block = Block()
    model = wrapped(copy.deepcopy(block))
    seen: list[Any] = []

    def pack(t: Tensor) -> Tensor:
        seen.append(type(t))
        return t

    def run(m: nn.Module, x: Tensor) -> Tensor:
        with (
            torch.autograd.graph.save_on_cpu(),
            torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t),
        ):
            return m(x)

    expected = gradients(block, run)
    seen.clear()
    for a, b in zip(gradients(model, run), expected, strict=True):
        torch.testing.assert_close(a, b)
    assert seen and set(seen) <= {Tensor, nn.Parameter}
