"""Operators of torch whose memory is known only when they run, and torch's profiler around a step."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from ortmodule_py import ORTModule, explain, last_run_report


class _Sampling(nn.Module):
    """`multinomial` draws, so that no trial run can tell what it allocates inside."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 4)

    def forward(self, weights: Tensor) -> Tensor:
        return self.fc(weights.gather(1, torch.multinomial(weights, 8))).sum()


def test_a_peak_outside_the_band_is_said_and_corrects_the_plan(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = ORTModule(_Sampling())
    peaks = []
    for _ in range(3):
        model(torch.rand(256, 4096)).backward()
        report = last_run_report(model)
        peaks.append((report["planned_peak_bytes"], report["measured_peak_bytes"]))
    assert peaks[0][1] > 1.005 * peaks[0][0]
    assert peaks[1][0] == peaks[1][1] == peaks[0][1] == peaks[2][1]
    said = [line for line in capsys.readouterr().err.splitlines() if "were planned" in line]
    assert len(said) == 1 and str(peaks[0][1]) in said[0] and str(peaks[0][0]) in said[0]


def test_a_budget_that_the_corrected_plan_breaks_ends_no_training(
    capsys: pytest.CaptureFixture[str],
) -> None:
    # What runs of these sizes take is remembered for the whole process: no test has others' sizes,
    # and the plan is asked for without a run.
    planned = explain(ORTModule(_Sampling()), torch.rand(256, 3072)).peak_bytes
    model = ORTModule(_Sampling(), memory_budget=f"activations:{planned + 4096}")
    for batch in (256, 320, 320, 256):
        model(torch.rand(batch, 3072)).backward()
    assert all(p.grad is not None for p in model.parameters())
    assert "It runs above the budget" in capsys.readouterr().err


def test_first_steps_under_a_profiler() -> None:
    """Trial runs must not put their counter where the profiler's callbacks look for its state."""
    model = ORTModule(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.MaxPool2d(2)))
    sampling = ORTModule(_Sampling())
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        for batch in (2, 3):
            model(torch.randn(batch, 3, 8, 8)).sum().backward()
            sampling(torch.rand(batch, 4096)).backward()
    names = {event.key for event in profiler.key_averages()}
    assert "aten::convolution" in names and "aten::multinomial" in names


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_what_torch_computes_is_taken_over(layout: torch.memory_format) -> None:
    """Results of torch's convolutions and norms, and their gradients, are the plan's without a copy."""
    layers = [nn.Conv2d(8, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.BatchNorm2d(8)]
    model = ORTModule(nn.Sequential(*layers, nn.Conv2d(8, 8, 1)).to(memory_format=layout))
    x = torch.randn(4, 8, 16, 16).contiguous(memory_format=layout).requires_grad_()
    model(x).backward(torch.ones_like(x))
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        model(x).backward(torch.ones_like(x))
    copies = [e for e in profiler.events() if e.name == "aten::copy_"]
    ours = [e for e in copies if e.cpu_parent and "ortmodule" in e.cpu_parent.name]
    assert [4, 8, 16, 16] not in [e.input_shapes[0] for e in ours]


class _Attending(nn.Module):
    """Attention that drops nothing, and so draws nothing, though the operator is one that may.

    Its heads share keys and values, which leaves it to torch.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 48)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.fc(x).view(*x.shape[:2], 3, 2, 8).permute(2, 0, 3, 1, 4)
        return nn.functional.scaled_dot_product_attention(q, k[:, :1], v[:, :1], enable_gqa=True)


def test_attention_without_dropout_is_tried_before_the_first_plan() -> None:
    model = ORTModule(_Attending())
    with torch.no_grad():
        model(torch.randn(3, 70, 16))
    report = last_run_report(model)
    assert report["planned_peak_bytes"] == report["measured_peak_bytes"] > 0


@pytest.mark.parametrize(
    ("level", "budget", "width"), [("1", None, 2560), ("", "activations:1GB", 2048)]
)
def test_inference_is_planned_anew_whatever_the_memory_optimizer_was_asked_for(
    level: str, budget: str | None, width: int,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Its session has made no choice that the new figures could change."""
    if level:
        monkeypatch.setenv("ORTMODULE_MEMORY_OPT_LEVEL", level)
    model = ORTModule(_Sampling(), memory_budget=budget)
    for _ in range(3):
        with torch.no_grad():
            model(torch.rand(256, width))
    report = last_run_report(model)
    assert report["plans"] == 2 and report["measured_peak_bytes"] == report["planned_peak_bytes"]
    assert "were planned" in capsys.readouterr().err
