"""cuBLASLt's epilogues that give a second result: the setting, and how `tools.gpu_check` shows what it times.
The C++ tests run both forms (tests/cpp/test_cublas_products.cpp)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from ortmodule_py import _C, ORTModule
from ortmodule_py.base import product_epilogues
from tests.devices.emulated import emulated
from tools.gpu_check.epilogues import times_table


@pytest.fixture(autouse=True)
def as_at_first() -> Iterator[None]:
    yield
    _C.use_product_epilogues("always")


def test_the_setting(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setenv("ORTMODULE_CACHE_DIR", str(tmp_path))
    caplog.set_level(logging.INFO)
    choose, log = product_epilogues.choose_product_epilogues, logging.getLogger("test")
    uses = []
    for checked in (False, True):
        monkeypatch.setattr(product_epilogues, "is_checked", lambda _, checked=checked: checked)
        for setting in ("auto", "0", "1", "measure"):
            choose("cuda", setting, log)
            choose("cpu", "0", log)
            uses.append(_C.product_epilogues()["use"])
    fixed = ["never", "always", "measured"]
    assert uses == ["always", *fixed, "measured", *fixed]
    assert caplog.text.count("are timed once for each problem") == 2  # with auto it goes on
    facts = _C.product_epilogues()
    assert facts["times"] == {}
    assert Path(facts["file"]).parent == tmp_path and not Path(facts["file"]).exists()
    monkeypatch.setenv("ORTMODULE_PRODUCT_EPILOGUES", "yes")
    with pytest.raises(ValueError, match=r"PRODUCT_EPILOGUES\] the value must be auto, 0, 1 or"):
        product_epilogues.product_epilogues_setting()
    with pytest.raises(_C.ORTModuleError, match="always, never or measured, but found often"):
        _C.use_product_epilogues("often")


def test_choices_of_a_file_are_read_at_once(tmp_path: Path) -> None:
    file = tmp_path / "choices"
    file.write_text("parts\t12.5\t10\ta problem\n")
    _C.use_product_epilogues("measured", str(file))
    assert _C.product_epilogues() == {
        "use": "measured",
        "file": str(file),
        "times": {"a problem": (12.5, 10.0, False)},
    }


@emulated
def test_a_module_follows_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_CUDA_EMULATION", "1")
    for setting, use in (("0", "never"), ("measure", "measured"), ("auto", "always")):
        monkeypatch.setenv("ORTMODULE_PRODUCT_EPILOGUES", setting)
        model = ORTModule(nn.Linear(4, 8))
        model(torch.randn(3, 4)).sum().backward()
        assert _C.product_epilogues()["use"] == use


def test_a_table_begins_where_the_epilogue_loses_most() -> None:
    times = {"fast": (10.0, 14.0, True), "slow": (30.0, 20.0, False), "even": (9.9, 9.8, True)}
    first, *lines = times_table(times)
    assert first.split() == ["epilogue", "us", "parts", "us", "used", "problem"]
    assert [line.split() for line in lines] == [
        ["30.0", "20.0", "parts", "slow"],
        ["9.9", "9.8", "epilogue", "even"],
        ["10.0", "14.0", "epilogue", "fast"],
    ]
