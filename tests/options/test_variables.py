"""Environment variables: all of ORTModule's names are known, and nothing is said twice."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest
from torch import nn

from ortmodule_py import DebugOptions, LogLevel, ORTModule, ORTModuleError
from ortmodule_py.options import variables
from ortmodule_py.options.variables import BY_NAME, Status, report_environment
from tests.fresh_process import ROOT
from tests.small_modules import ChangesInput, not_a_leaf

OF_ORTMODULE = """
MEMORY_OPT_LEVEL MEMORY_OPT_CONFIG LOG_LEVEL SAVE_ONNX_PATH PRINT_MEMORY_STATS PRINT_INPUT_DENSITY
FALLBACK_POLICY FALLBACK_RETRY SKIPCHECK_POLICY ENABLE_CUSTOM_AUTOGRAD ALLOW_AUTOGRAD_CHECKPOINT
ENABLE_COMPUTE_OPTIMIZER ENABLE_EMBEDDING_SPARSE_OPTIMIZER ENABLE_LABEL_SPARSE_OPTIMIZER
ENABLE_SPARSE_OPTIMIZER ENABLE_MEM_EFFICIENT_GRAD_MGMT DEEPCOPY_BEFORE_MODEL_EXPORT CACHE_DIR
ONNX_OPSET_VERSION CONV_ALGO_SEARCH ENABLE_ZERO_STAGE3 USE_TRITON TRITON_CONFIG_FILE TRITON_DEBUG
USE_FLASH_ATTENTION USE_EFFICIENT_ATTENTION ATEN_SDPA_FALLBACK ENABLE_TUNING MAX_TUNING_DURATION_MS
TUNING_RESULTS_PATH JSON_CONFIG_PATH MEMORY_OPT_PROBE_RECOMPUTE_LEVEL TORCH_CPP_DIR
DISABLE_CPU_TRAINING_TEST SKIPPED_AUTOGRAD_FUNCTIONS
"""


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is logged, in a process that has said nothing yet."""
    for name in BY_NAME:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(variables, "_reported", set())
    return []


def logger_into(lines: list[str], level: int = logging.WARNING) -> logging.Logger:
    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    logger = logging.Logger("test", level)
    logger.addHandler(Handler())
    return logger


def test_every_variable_of_ortmodule_is_known() -> None:
    assert [name for name in OF_ORTMODULE.split() if f"ORTMODULE_{name}" not in BY_NAME] == []


def test_every_variable_that_is_read_is_in_the_table() -> None:
    read = set()
    for path in Path(variables.__file__).parents[1].rglob("*.py"):
        if path.name != "variables.py":
            read |= set(re.findall(r'"(ORTMODULE_[A-Z0-9_]+)"', path.read_text()))
    for path in (ROOT / "csrc" / "bindings").rglob("*.cpp"):
        read |= set(re.findall(r'getenv\("(ORTMODULE_[A-Z0-9_]+)"', path.read_text()))
    works = {n for n, v in BY_NAME.items() if v.status not in (Status.MOOT, Status.BUILD)}
    assert read == works


@pytest.mark.parametrize("name", [n for n, v in BY_NAME.items() if v.status is Status.MOOT])
def test_a_moot_variable_gives_one_notice(
    said: list[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "1")
    for _ in range(3):
        report_environment(logger_into(said))
    assert said == [f"ortmodule_py: {name} has no effect: {BY_NAME[name].meaning}"]


def test_an_unknown_variable_is_reported_with_the_nearest(
    said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_LEVLE", "1")
    report_environment(logger_into(said, logging.ERROR))  # nobody hears it: it is not yet said
    report_environment(logger_into(said))
    report_environment(logger_into(said))
    assert len(said) == 1
    assert "ORTMODULE_MEMORY_OPT_LEVLE" in said[0] and "ORTMODULE_MEMORY_OPT_LEVEL" in said[0]


def test_what_works_is_not_mentioned(said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("MEMORY_OPT_LEVEL", "1"), ("CUDA", "ON"), ("LOG_LEVEL", "INFO")):
        monkeypatch.setenv(f"ORTMODULE_{name}", value)
    monkeypatch.setenv("ORTMODULE_FALLBACK_POLICY", "FALLBACK_DISABLE")
    report_environment(logger_into(said))
    assert said == []


def test_once_per_process(
    said: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ORTMODULE_SKIPCHECK_POLICY", "SKIP_CHECK_DISABLED")
    monkeypatch.setenv("ORTMODULE_BYPAS", "1")
    for _ in range(3):
        ORTModule(nn.Linear(2, 2))
    printed = capsys.readouterr().err
    assert printed.count("ORTMODULE_SKIPCHECK_POLICY has no effect") == 1
    assert printed.count("found ORTMODULE_BYPAS; the nearest is ORTMODULE_BYPASS") == 1


def test_fallback_disable_makes_an_eager_piece_an_error(
    said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORTMODULE_FALLBACK_POLICY", "FALLBACK_UNSUPPORTED_DATA|FALLBACK_DISABLE")
    model = ORTModule(ChangesInput())
    with pytest.raises(ORTModuleError, match="every piece must be compiled, but found"):
        model(not_a_leaf())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("VERIFY_EVERY", "-1"),
        ("VERIFY_EVERY", "x"),
        ("FUEL", "1.5"),
        ("FUEL", "9223372036854775808"),
        ("FUEL", "9" * 5000),
        ("FALLBACK_POLICY", "NONE"),
        ("CONV_ALGO_SEARCH", "FASTEST"),
    ],
)
def test_wrong_values_are_errors(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"ORTMODULE_{name}", value)
    with pytest.raises(ValueError, match=rf"\[ORTMODULE_{name}\] .* but found '{value}'"):
        ORTModule(nn.Linear(2, 2))


@pytest.mark.parametrize("name", [n for n, v in BY_NAME.items() if v.status is not Status.BUILD])
def test_an_empty_variable_is_as_good_as_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    monkeypatch.setenv(name, "")
    model = ORTModule(nn.Linear(2, 2), DebugOptions(LogLevel.ERROR, save_path=str(tmp_path)))
    assert model._debug_options.save_path == tmp_path
    assert model._debug_options.log_level is LogLevel.ERROR
    assert not model._engine_options.torch_rng and model._outputs is None


def test_docs_have_the_table() -> None:
    text = (ROOT / "docs" / "migrating.md").read_text()
    assert variables.markdown_table() in text, (
        "put what is returned by `ortmodule_py.options.variables.markdown_table()` into docs/migrating.md"
    )


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("ORTMODULE_DISABLE_PASSES", "fuse_skip_layer_nrom", "nearest is fuse_skip_layer_norm"),
        ("ORTMODULE_DUMP", "/dev/null/dump", "directory must be one that can be made"),
        ("ORTMODULE_MACHINE_RATES", "fast", "must be measure or estimate"),
    ],
)
def test_what_a_variable_cannot_be_is_said_at_construction(
    variable: str, value: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ValueError, match=rf"\[{variable}\].*{message}"):
        ORTModule(nn.Linear(2, 2))
