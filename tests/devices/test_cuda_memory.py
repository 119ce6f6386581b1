"""Budgets, counters and rates on CUDA devices, with torch's answers put in: no GPU is needed."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from torch import nn

from ortmodule_py.base.machine_rates import cache_file
from ortmodule_py.compile.step_budget import reserved_bytes, warn_beyond_device
from ortmodule_py.report.stats import _cuda_counts

GPU = torch.device("cuda", 0)


def test_what_a_budget_leaves_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    module = nn.Linear(100, 10)
    held, state = module.weight.nbytes + module.bias.nbytes, 2 * (4 * 1010)
    assert reserved_bytes(module, torch.device("cpu")) == held + state
    for others, expected in ((0, held + state), (500, held + state + 500), (state, held + state)):
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _, n=others: held + n)
        assert reserved_bytes(module, GPU) == expected
    # The state exists, and something else as well.
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: held + state + 77)
    assert reserved_bytes(module, GPU) == held + state + 77


def test_a_budget_larger_than_the_device(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (600, 1000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 100)
    logger = logging.getLogger("budget")
    warn_beyond_device(700, GPU, logger)
    warn_beyond_device(10**9, torch.device("cpu"), logger)
    assert caplog.text == ""
    warn_beyond_device(701, GPU, logger)
    assert (
        "the budget is 701 bytes, but cuda:0 has 1,000, of which other processes use 300"
        in caplog.text
    )


def test_the_memory_line_reads_the_allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    stats = {
        "allocated_bytes.all.current": 1,
        "allocated_bytes.all.peak": 2,
        "reserved_bytes.all.current": 3,
        "reserved_bytes.all.peak": 4,
        "inactive_split_bytes.all.current": 5,
        "inactive_split_bytes.all.peak": 6,
    }
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda _: stats)
    assert _cuda_counts(GPU) == {
        "allocated": 1,
        "max allocated": 2,
        "cached": 3,
        "max cached": 4,
        "inactive": 5,
        "max inactive": 6,
    }


def test_rates_are_kept_per_kind_of_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ORTMODULE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H200")
    path = cache_file(GPU)
    assert path.parent == tmp_path
    assert path.name.startswith("gpu-rates-NVIDIA-H200-")
    assert path != cache_file()
