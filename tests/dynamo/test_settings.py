"""Dynamo's configuration is ours where a frame is converted, and the user's everywhere else."""

from __future__ import annotations

import functools
import logging
import sys
import types
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ortmodule_py import DebugOptions, LogLevel, ORTModule, last_run_report
from ortmodule_py.dynamo.settings import CONFIG_IS_THREAD_LOCAL

_config = torch._dynamo.config
_logger = logging.getLogger("model")


class _Breaking(nn.Module):
    """Notes what eager PyTorch sees between two pieces."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.seen: list[bool] = []

    @torch._dynamo.disable
    def note(self) -> None:
        self.seen.append(bool(_config.fail_on_recompile_limit_hit))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        self.note()
        return self.second(x)


def _wrapped(module: nn.Module) -> ORTModule:
    return ORTModule(module, DebugOptions(LogLevel.FATAL))


def _entries(model: ORTModule, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Grows with each time that the settings are entered."""
    entered: list[bool] = []
    settings = model._frames.settings

    class Counted:
        def __enter__(self) -> None:
            entered.append(True)
            settings.__enter__()

        def __exit__(self, *error: Any) -> None:
            settings.__exit__(*error)

    monkeypatch.setattr(model._frames, "settings", Counted())
    return entered


@pytest.mark.skipif(
    not CONFIG_IS_THREAD_LOCAL, reason="before torch 2.13 all threads share the configuration"
)
def test_a_call_whose_guards_hold_enters_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    model = _wrapped(module)
    model(torch.randn(3, 4)).sum().backward()
    entered = _entries(model, monkeypatch)
    model(torch.randn(3, 4)).sum().backward()
    assert entered == []
    module.train(False)
    model(torch.randn(3, 4, 4))  # another rank: captured anew
    assert entered != []


@pytest.mark.skipif(
    not CONFIG_IS_THREAD_LOCAL, reason="before torch 2.13 all threads share the configuration"
)
def test_a_stance_keeps_them_around_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may put a conversion of torch's own before ours."""
    model = _wrapped(nn.Linear(4, 4))
    model(torch.randn(3, 4))
    entered = _entries(model, monkeypatch)
    with torch.compiler.set_stance("eager_on_recompile"):
        model(torch.randn(3, 4))
    assert entered == [True]


def test_they_end_with_the_call() -> None:
    model = _wrapped(nn.Linear(4, 4))
    before = _config.fail_on_recompile_limit_hit, _config.allow_rnn
    for batch in (3, 5):
        model(torch.randn(batch, 4)).sum().backward()
        assert (_config.fail_on_recompile_limit_hit, _config.allow_rnn) == before


def test_code_between_pieces_has_the_users_configuration() -> None:
    module = _Breaking()
    model = _wrapped(module)
    for _ in range(3):
        model(torch.randn(3, 4)).sum().backward()
    assert (
        module.seen[1:] == [_config.fail_on_recompile_limit_hit or not CONFIG_IS_THREAD_LOCAL] * 2
    )


class _Warning(nn.Module):
    """Warns as models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.linear(x)
        _logger.warning_once("said once")  # type: ignore[attr-defined]
        return h.relu()


def test_a_library_s_way_to_log_is_known_though_it_is_imported_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @functools.cache
    def warning_once(self: logging.Logger, *args: Any) -> None:
        self.warning(*args)

    monkeypatch.delitem(sys.modules, "transformers.utils.logging", raising=False)
    _wrapped(nn.Linear(4, 4))(torch.randn(3, 4))
    library = types.ModuleType("transformers.utils.logging")
    library.warning_once = warning_once  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "transformers.utils.logging", library)
    monkeypatch.setattr(logging.Logger, "warning_once", warning_once, raising=False)
    model = _wrapped(_Warning())
    model(torch.randn(3, 4))
    # torch before 2.13 breaks the graph wherever a logger logs.
    assert (last_run_report(model)["graph_breaks"] == []) == CONFIG_IS_THREAD_LOCAL
