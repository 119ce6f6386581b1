"""Functions with nothing to capture in the first calls, which compute something later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ortmodule_py import DebugOptions, LogLevel, ORTModule, last_run_report

QUIET = DebugOptions(log_level=LogLevel.ERROR)


class Switched(nn.Module):
    """Returns its argument until it is switched on."""

    def __init__(self, parameters: bool) -> None:
        super().__init__()
        self.settings = {"on": False}
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.Tanh()) if parameters else nn.Tanh()

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x * 2) + 1 if self.settings["on"] else x


@pytest.mark.parametrize("policy", ["FALLBACK_DISABLE", "FALLBACK_UNSUPPORTED_DATA"])
@pytest.mark.parametrize("parameters", [True, False])
def test_a_module_that_is_switched_on(
    parameters: bool, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORTMODULE_FALLBACK_POLICY", policy)
    torch._dynamo.reset()
    model = ORTModule(Switched(parameters), QUIET)
    x = torch.randn(3, 4, requires_grad=True)
    for _ in range(3):
        assert model(x) is x
    model.settings["on"] = True
    for _ in range(2):  # the first one finds that the function computes something
        torch.testing.assert_close(model(x), model.module(x))
    pieces = len(model._compiler.pieces)
    torch.testing.assert_close(model(x), model.module(x))
    report = last_run_report(model)
    assert report["compiled"] and not report["eager_pieces"], report
    assert len(model._compiler.pieces) == pieces
    assert model._compiler.pieces[-1].whole


def _later(x: Tensor, on: bool) -> Tensor:
    return (x * 2).tanh() + 1 if on else x


class Calls(nn.Module):
    """Calls a function from Python, behind a graph break."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.fc, self.on, self.function = nn.Linear(4, 4), False, function

    def forward(self, x: Tensor) -> Tensor:
        return self.in_python(self.fc(x))

    @torch.compiler.disable(recursive=False)
    def in_python(self, x: Tensor) -> Tensor:
        return self.function(x, self.on)


def test_a_function_that_is_called_with_another_flag() -> None:
    torch._dynamo.reset()
    model, x = ORTModule(Calls(_later), QUIET), torch.randn(3, 4)
    found: list[Any] = []
    for on in (False, False, True, True, True):
        model.on = on
        torch.testing.assert_close(model(x), model.module(x))
        found.append(len(model._compiler.pieces))
    assert found[0] == found[1] == 1 and found[-1] == found[-2] == 2, found


def test_an_empty_function_is_not_tried_at_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    model, x = ORTModule(Switched(True), QUIET), torch.randn(3, 4)
    tried = []
    frames = model._frames
    convert = type(frames)._converted
    monkeypatch.setattr(
        type(frames),
        "_converted",
        lambda *given, **named: (tried.append(1), convert(*given, **named))[1],
    )
    for _ in range(6):
        model(x)
    assert len(tried) == 1
