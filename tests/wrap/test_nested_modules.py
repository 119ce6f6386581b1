"""ORTModules inside of other compiled modules."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from ortmodule_py import ORTModule, last_run_report
from tests.semantics import QUIET


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16))
        self.head = nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.encoder(x)
        return self.head(hidden).square().sum()


def _gradients(model: nn.Module, module: nn.Module, x: Tensor) -> list[Tensor | None]:
    model(x).backward()
    return [p.grad for p in module.parameters()]


@pytest.mark.parametrize("outer", ["ours", pytest.param("compile", marks=pytest.mark.slow), "none"])
def test_an_encoder_inside(outer: str) -> None:
    plain = _Model()
    module = copy.deepcopy(plain)
    encoder = module.encoder = ORTModule(module.encoder)
    model: nn.Module = module
    if outer == "ours":
        model = ORTModule(module)
    elif outer == "compile":
        model = torch.compile(module, backend="aot_eager")  # type: ignore[assignment]
    for batch in (3, 5):
        x = torch.randn(batch, 8)
        wanted, found = _gradients(plain, plain, x), _gradients(model, module, x)
        for ours, eager in zip(found, wanted, strict=True):
            torch.testing.assert_close(ours, eager)
    if outer == "ours":
        assert last_run_report(model)["compiled"]
        assert not last_run_report(model)["graph_breaks"]
        assert not last_run_report(encoder)["captures"]
        encoder(x).sum().backward()
    assert last_run_report(encoder)["compiled"]


def test_compiled_from_outside() -> None:
    plain = _Model()
    wrapped = ORTModule(copy.deepcopy(plain))
    model = torch.compile(wrapped, backend="aot_eager")
    x = torch.randn(3, 8)
    wanted, found = _gradients(plain, plain, x), _gradients(model, wrapped, x)  # type: ignore[arg-type]
    for ours, eager in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, eager)
    assert last_run_report(wrapped)["compiled"]


def test_hooks_run_once_inside_another_compiler() -> None:
    torch._dynamo.reset()
    inner = ORTModule(nn.Linear(4, 4), QUIET)
    called: list[str] = []
    inner.register_forward_pre_hook(lambda *given: called.append("before"))
    inner.register_forward_hook(lambda *given: called.append("after"))
    net = torch.compile(nn.Sequential(inner, nn.Tanh()), backend="eager")
    for _ in range(2):
        called.clear()
        net(torch.randn(3, 4)).sum().backward()
        assert called == ["before", "after"]
    assert last_run_report(inner)["compiled"]


def test_a_hook_that_is_added_later_to_a_module_inside() -> None:
    inner = ORTModule(nn.Linear(4, 4), QUIET)
    outer = ORTModule(nn.Sequential(nn.Sequential(inner), nn.Tanh()), QUIET)
    x = torch.randn(3, 4)
    outer(x)
    called: list[int] = []
    handle = inner.register_forward_hook(lambda *given: called.append(1))
    outer(x)
    assert called == [1]
    handle.remove()
    outer(x)
    assert called == [1]
