"""Convolutions of 16 bits by cuDNN's graph API, planned for an H200 that is not there: cuDNN's own
heuristics and execution plans, of which only the launch takes a GPU."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from ortmodule_py import _C
from ortmodule_py.base import graph_convolutions

from .test_cuda_plans import Planned, fake_module, planned

__all__ = ["planned"]

with_cudnn = pytest.mark.skipif(
    not _C.build_info()["cuda"].get("graph_convolutions"),
    reason="this build has no cuDNN of 9.8 or newer",
)

_H200 = {
    "deviceName": "NVIDIA H200",
    "cudaDeviceId": 0,
    "deviceVer": 900,
    "driverVer": 13000,
    "multiProcessorCount": 132,
    "warpSize": 32,
    "maxGridSize": [2147483647, 65535, 65535],
    "maxBlockSize": [1024, 1024, 64],
    "maxThreadsPerBlock": 1024,
    "maxThreadsPerSM": 2048,
    "maxCtasPerSM": 32,
    "regsPerBlock": 65536,
    "maxRegistersPerSM": 65536,
    "maxSharedMemoryPerBlock": 49152,
    "maxSharedMemoryPerBlockOptin": 232448,
    "reservedSharedMemoryPerBlock": 1024,
    "totalGlobalMem": 150 * 10**9,
    "l2CacheSize": 60 << 20,
    "smClockRateKHz": 1980000,
    "memClockRateKHz": 3201000,
    "pciDeviceId": 0,
    "isTccDriver": 0,
    "supportCoopLaunch": 1,
}


@pytest.fixture
def on_h200() -> Iterator[None]:
    _C.use_graph_convolutions(True, json.dumps(_H200))
    yield
    _C.use_graph_convolutions(False)


class _Convolutions(nn.Module):
    """Strides, dilation, groups, pixels and volumes, with and without a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 32, 7, stride=2, padding=3)
        self.dilated = nn.Conv2d(32, 64, 3, padding=2, dilation=2, bias=False)
        self.pixels = nn.Conv2d(64, 64, 1, bias=False)
        self.grouped = nn.Conv2d(64, 64, 3, padding=1, groups=4, bias=False)
        self.volume = nn.Conv3d(8, 16, 3, padding=1)

    def forward(self, image: Tensor) -> Tensor:
        x = self.grouped(self.pixels(self.dilated(self.first(image)).tanh()))
        return self.volume(x.unflatten(1, (8, 8))).float().square().mean()


class _Plan:
    """Of the module on fake tensors, for training."""

    def __init__(self, planned: Planned, dtype: torch.dtype) -> None:
        before = _C.graph_convolution_counts()
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        module = fake_module(mode, _Convolutions().to(dtype))
        with mode:
            image = torch.empty(16, 3, 64, 64, device="cuda", dtype=dtype)
            self.text = planned.plan(module, image)
        after = _C.graph_convolution_counts()
        self.asked, self.without_plan = (
            after[name] - before[name] for name in ("problems", "without_plan")
        )
        self.buffer_bytes = sum(planned.pieces.pop().facts()["buffer_bytes"])


@with_cudnn
def test_plans_know_the_scratch_of_each_convolution(planned: Planned, on_h200: None) -> None:
    """Forward, both gradients and, of the first, that of the weight alone: each once, and none without a plan
    that gives the same bits in every run. The classic calls are promised as much scratch as they may want."""
    first = _Plan(planned, torch.bfloat16)
    assert (first.asked, first.without_plan) == (14, 0)
    assert first.text.count(" conv_cudnn ") == 5 == first.text.count(" conv_grad_cudnn ")
    again = _Plan(planned, torch.bfloat16)
    assert (again.asked, again.text) == (0, first.text)
    _C.use_graph_convolutions(False)
    classic = _Plan(planned, torch.bfloat16)
    assert classic.asked == 0
    assert first.buffer_bytes < classic.buffer_bytes


@with_cudnn
def test_float32_keeps_to_the_classic_calls(planned: Planned, on_h200: None) -> None:
    assert _Plan(planned, torch.float32).asked == 0


@with_cudnn
def test_what_cudnn_refuses_keeps_to_the_classic_calls(planned: Planned) -> None:
    classic = _Plan(planned, torch.float16)
    try:
        _C.use_graph_convolutions(True, json.dumps({**_H200, "maxGridSize": "large"}))
        refused = _Plan(planned, torch.float16)
    finally:
        _C.use_graph_convolutions(False)
    assert refused.asked == refused.without_plan == 14
    assert refused.text == classic.text


def test_the_setting(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    used: list[bool] = []
    cuda = {"graph_convolutions": True}
    monkeypatch.setattr(_C, "use_graph_convolutions", used.append)
    monkeypatch.setattr(_C, "build_info", lambda: {"cuda": cuda})
    choose, log = graph_convolutions.choose_graph_convolutions, logging.getLogger("test")
    for checked in (False, True):
        monkeypatch.setattr(graph_convolutions, "is_checked", lambda _, checked=checked: checked)
        for setting in ("auto", "0", "1"):
            choose("cuda", setting, log)
            choose("cpu", setting, log)
    assert used == [False, False, True, True, False, True]
    assert not caplog.records
    cuda.clear()
    choose("cuda", "1", log)
    assert len(used) == 6 and "has no effect: this build has no cuDNN" in caplog.text
    monkeypatch.setenv("ORTMODULE_GRAPH_CONVOLUTIONS", "yes")
    with pytest.raises(ValueError, match=r"GRAPH_CONVOLUTIONS\] the value must be auto, 0 or 1"):
        graph_convolutions.graph_convolutions_setting()
