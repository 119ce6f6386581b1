"""DebugOptions and LogLevel, in scripts that set up no logging."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from ortmodule_py import DebugOptions, LogLevel
from ortmodule_py.options.logger import module_logger
from tests.fresh_process import run


def test_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ORTMODULE_LOG_LEVEL", "ORTMODULE_SAVE_ONNX_PATH"):
        monkeypatch.delenv(name, raising=False)
    options = DebugOptions()
    assert options.log_level is options.logging.log_level is LogLevel.WARNING
    saved = options.save_onnx_models
    assert (saved.save, saved.name_prefix, saved.path) == (False, "", ".")
    assert options.torch_exporter_filter is None and options.onnxruntime_log_filter is None
    assert DebugOptions(config=object()).log_level is LogLevel.WARNING
    names = ["VERBOSE", "DEVINFO", "INFO", "WARNING", "ERROR", "FATAL"]
    assert [(level.name, int(level)) for level in LogLevel] == list(
        zip(names, range(6), strict=True)
    )


def test_the_environment_wins_everywhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ORTMODULE_LOG_LEVEL", "devinfo")
    monkeypatch.setenv("ORTMODULE_SAVE_ONNX_PATH", str(tmp_path))
    options = DebugOptions(LogLevel.ERROR, save_onnx=True, onnx_prefix="net", save_path="/")
    assert options.log_level is options.logging.log_level is LogLevel.DEVINFO
    assert options.save_onnx_models.path == str(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"log_level": 3}, TypeError, "log_level must be a LogLevel, but found int"),
        ({"save_onnx": "yes"}, TypeError, "save_onnx must be a bool, but found str"),
        ({"save_onnx": True}, ValueError, "onnx_prefix must be provided"),
        ({"onnx_prefix": 1}, TypeError, "onnx_prefix must be a str, but found int"),
        (
            {"save_onnx": True, "onnx_prefix": "n", "save_path": "/no/such/folder"},
            OSError,
            "set ORTMODULE_SAVE_ONNX_PATH",
        ),
    ],
)
def test_errors(
    monkeypatch: pytest.MonkeyPatch,
    arguments: dict[str, object],
    error: type[Exception],
    message: str,
) -> None:
    monkeypatch.delenv("ORTMODULE_SAVE_ONNX_PATH", raising=False)
    with pytest.raises(error, match=rf"^\[DebugOptions\] .*{message}"):
        DebugOptions(**arguments)  # type: ignore[arg-type]


SAID = {
    "FATAL": ([], ["ortmodule_py"]),
    "ERROR": ([], ["ortmodule_py"]),
    "WARNING": (["runs your model"], ["captured piece", "trace  "]),
    "INFO": (["runs your model", "captured piece 1 for training"], ["trace  "]),
    "VERBOSE": (["runs your model", "captured piece 1", "trace  ", "optimize_forward"], []),
}

ALL_LEVELS = """
import sys, torch
from torch import nn
from ortmodule_py import ORTModule, DebugOptions, LogLevel
for level in ("FATAL", "ERROR", "WARNING", "INFO", "VERBOSE"):
    print("=====", level, file=sys.stderr)
    model = ORTModule(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), DebugOptions(LogLevel[level]))
    for _ in range(3):
        model(torch.ones(8, 4)).sum().backward()
"""


@pytest.mark.slow
def test_levels_without_logging_set_up() -> None:
    done = run(ALL_LEVELS)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    parts = dict(part.split("\n", 1) for part in done.stderr.split("===== ")[1:])
    assert list(parts) == list(SAID)
    for level, (present, absent) in SAID.items():
        for text in present:
            assert parts[level].count(text) == 1, parts[level]
        for text in absent:
            assert text not in parts[level]
    assert parts["ERROR"] == "" and len(parts["WARNING"].splitlines()) <= 10


def test_other_ranks_are_silent_above_devinfo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    numbers = range(10_000, 10_006)
    loggers = [module_logger(level, n) for level, n in zip(LogLevel, numbers, strict=True)]
    speaking = [level for level, log in zip(LogLevel, loggers, strict=True) if not log.disabled]
    assert speaking == [LogLevel.VERBOSE, LogLevel.DEVINFO]
    assert loggers[0].isEnabledFor(logging.DEBUG)


def test_a_variable_of_others_that_is_no_rank_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RANK", "captain")
    assert not module_logger(LogLevel.INFO, 10_010).disabled
