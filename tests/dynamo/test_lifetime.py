"""What Dynamo and the engine keep of a module ends with it."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from ortmodule_py import DebugOptions, ORTModule, check, last_run_report
from ortmodule_py.dynamo import settings


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x).tanh().sum()


@pytest.mark.parametrize(("verify", "save"), [("0", False), ("1", False), ("0", True)])
def test_a_module_is_freed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, verify: str, save: bool
) -> None:
    monkeypatch.setenv("ORTMODULE_VERIFY_EVERY", verify)
    torch._dynamo.reset()
    module = Small()
    options = DebugOptions(save_onnx=save, onnx_prefix="small", save_path=str(tmp_path))
    model = ORTModule(module, options)
    model(torch.randn(3, 4)).backward()
    assert bool(list(tmp_path.iterdir())) == save
    dead = [weakref.ref(module), weakref.ref(model), weakref.ref(module.fc.weight)]
    del module, model
    gc.collect()
    assert [ref() for ref in dead] == [None, None, None]


def test_backward_outlives_the_wrapper() -> None:
    module, x = Small(), torch.randn(3, 4)
    model = ORTModule(module)
    loss = model(x)
    del model
    gc.collect()
    loss.backward()
    (grad,) = torch.autograd.grad(module(x), [module.fc.weight])
    torch.testing.assert_close(module.fc.weight.grad, grad)


def test_other_modules_of_the_class_keep_their_captures() -> None:
    module, x = Small(), torch.randn(3, 4)
    live, dying = ORTModule(module), ORTModule(module)
    live(x)
    dying(x)
    del dying
    gc.collect()
    live(x)
    assert last_run_report(live)["captures"] == 1


class Loops(nn.Module):
    """Its loop breaks the graph, and is captured without it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = x.sin()
        for _ in range(2):
            torch._dynamo.graph_break()
            x = self.fc(x)
        return x.sum()


@pytest.mark.parametrize("kind", [Small, Loops])
def test_many_modules_do_not_reach_the_limit(
    kind: type[nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "CAPTURES_PER_FUNCTION", 4)
    torch._dynamo.reset()
    module, x = kind(), torch.randn(3, 4)
    for _ in range(8):
        assert check(module, x).compiled
    model = ORTModule(module)
    model(x)
    assert last_run_report(model)["compiled"]
