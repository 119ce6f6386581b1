"""Planned and measured peak agree for runs out of the ordinary, too."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ortmodule_py import ORTModule, last_run_report


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 64)
        self.second = nn.Linear(64, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))


class Unconnected(nn.Module):
    """Its result depends on no parameter, though it has one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        self.layer(x)
        return x * 2


class UnreadDraw(nn.Module):
    """Torch's dropout returns a mask that nothing reads when no gradient is wanted."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return nn.functional.dropout(x, 0.5) + 1.0, self.scale * 2.0


def _assert_equal_peaks(model: ORTModule) -> None:
    report = last_run_report(model)
    assert report["planned_peak_bytes"] == report["measured_peak_bytes"] > 0


def test_retained_backward() -> None:
    model = ORTModule(Layers())
    loss = model(torch.randn(32, 16)).sum()
    loss.backward(retain_graph=True)
    _assert_equal_peaks(model)
    loss.backward(retain_graph=True)
    _assert_equal_peaks(model)
    loss.backward()
    _assert_equal_peaks(model)
    model(torch.randn(32, 16)).sum().backward()
    _assert_equal_peaks(model)


def test_no_gradient_flows() -> None:
    model = ORTModule(Unconnected())
    assert not model(torch.randn(3, 4)).requires_grad
    _assert_equal_peaks(model)


def test_results_that_nobody_reads(monkeypatch: object) -> None:
    monkeypatch.setenv("ORTMODULE_RNG", "torch")  # type: ignore[attr-defined]
    model, x = ORTModule(UnreadDraw()), torch.randn(3, 4)
    torch.manual_seed(1)
    got, _ = model(x)
    torch.manual_seed(1)
    want, _ = UnreadDraw()(x)
    torch.testing.assert_close(got, want)


def test_of_several_captures_the_last_run_is_reported() -> None:
    model = ORTModule(Layers())
    for rows in (8, 1, 8, 64, 1):  # one row is a capture of its own
        x = torch.randn(rows, 16)
        for _ in range(2):
            model(x).sum().backward()
        report = last_run_report(model)
        alone = ORTModule(Layers())
        alone(x).sum().backward()
        assert report["planned_peak_bytes"] == last_run_report(alone)["planned_peak_bytes"]
        assert report["planned_peak_bytes"] == report["measured_peak_bytes"]
    assert report["captures"] == 2
