"""Draws of the engine's own: their distributions, and that backward draws them again."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from ortmodule_py import ORTModule, last_run_report
from tests.semantics import QUIET

_COUNT = 40_000


class _Drawn(nn.Module):
    """Returns what `draw` makes of an activation."""

    def __init__(self, draw: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.draw = draw
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * self.scale
        return y, self.draw(y)


def _draws(draw: Callable[[Tensor], Tensor], dtype: torch.dtype) -> Tensor:
    torch._dynamo.reset()
    model = ORTModule(_Drawn(draw).to(dtype), QUIET)
    torch.manual_seed(0)
    _, drawn = model(torch.zeros(4, _COUNT // 4, dtype=dtype))
    report = last_run_report(model)
    assert report["compiled"] and not report["nodes_aten_fallback"], report["aten_fallbacks"]
    assert drawn.dtype == dtype and not drawn.requires_grad
    return drawn.double().flatten()


def _phi(x: Tensor) -> Tensor:
    return torch.special.ndtr(x)


Distribution = tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]

CONTINUOUS: dict[str, Distribution] = {
    "rand_like": (torch.rand_like, lambda x: x.clamp(0, 1)),
    "rand": (lambda x: torch.rand(x.shape, dtype=x.dtype), lambda x: x.clamp(0, 1)),
    "uniform": (lambda x: x.new_empty(x.shape).uniform_(-2, 3), lambda x: (x + 2) / 5),
    "randn_like": (torch.randn_like, _phi),
    "normal": (lambda x: torch.zeros_like(x).normal_(0.5, 2.0), lambda x: _phi((x - 0.5) / 2)),
    "exponential": (
        lambda x: torch.empty_like(x).exponential_(2.0),
        lambda x: 1 - torch.exp(-2 * x),
    ),
    "log_normal": (lambda x: torch.empty_like(x).log_normal_(0.0, 0.5), lambda x: _phi(2 * x.log())),
    "cauchy": (lambda x: torch.empty_like(x).cauchy_(1.0, 2.0), lambda x: ((x - 1) / 2).atan() / math.pi + 0.5),
}  # fmt: skip


_TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@pytest.mark.parametrize(
    ("name", "dtype"),
    # All types of two; of the others, each another one.
    [
        (name, dtype)
        for n, name in enumerate(CONTINUOUS)
        for dtype in (_TYPES if name in ("uniform", "randn_like") else [_TYPES[n % 4]])
    ],
)
def test_the_distribution(name: str, dtype: torch.dtype) -> None:
    """Kolmogorov and Smirnov: passed by chance but once in 10,000 draws, where numbers are exact."""
    draw, cumulative = CONTINUOUS[name]
    drawn = _draws(draw, dtype).sort().values
    share = cumulative(drawn)
    below = torch.arange(_COUNT, dtype=torch.float64) / _COUNT
    distance = float(torch.maximum(share - below, below + 1 / _COUNT - share).max())
    rounding = {torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}.get(dtype, 0.0)
    assert distance < 2.3 / _COUNT**0.5 + rounding


def test_neighbours_are_unrelated() -> None:
    """Elements side by side, rows, and two draws of one forward."""
    drawn = _draws(
        lambda x: torch.cat([torch.randn_like(x), torch.randn_like(x)], -1), torch.float32
    )
    rows = drawn.view(4, 2, -1)
    for a, b in ((drawn[1:], drawn[:-1]), (rows[0], rows[1]), (rows[:, 0], rows[:, 1])):
        assert abs(float((a * b).mean())) < 4.5 / a.numel() ** 0.5
        assert abs(float((a.square() * b.square()).mean()) - 1) < 20 / a.numel() ** 0.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_bounds_are_torchs(dtype: torch.dtype) -> None:
    """0 may be drawn and 1 not, whatever the type's rounding; an exponential is never 0."""
    unit = _draws(torch.rand_like, dtype)
    digits = {torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}[dtype]
    assert unit.min() >= 0 and unit.max() <= 1 - 2.0**-digits
    assert torch.equal(unit * 2**digits, (unit * 2**digits).round())
    if digits < 12:
        assert unit.min() == 0 and unit.max() == 1 - 2.0**-digits
    waits = _draws(lambda x: torch.empty_like(x).exponential_(), dtype)
    assert waits.min() > 0 and waits.isfinite().all()


INTEGERS: dict[str, tuple[Callable[[Tensor], Tensor], int, int]] = {
    "randint_like": (lambda x: torch.randint_like(x, -3, 5), -3, 5),
    "randint": (lambda x: torch.randint(7, x.shape).to(x.dtype), 0, 7),
    "random": (lambda x: torch.zeros_like(x).random_(2, 6), 2, 6),
    "size": (lambda x: torch.randint(0, x.shape[0], x.shape).to(x.dtype), 0, 4),
    "bits": (lambda x: torch.zeros_like(x, dtype=torch.bool).random_().to(x.dtype), 0, 2),
}


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_are_equally_frequent(name: str) -> None:
    draw, low, high = INTEGERS[name]
    drawn = _draws(draw, torch.float32).long()
    assert drawn.min() == low and drawn.max() == high - 1
    expected = _COUNT / (high - low)
    counts = torch.bincount(drawn - low).double()
    # Chi-squared: its mean is the degrees of freedom, its deviation the root of twice that.
    freedom = high - low - 1
    assert float(((counts - expected) ** 2 / expected).sum()) < freedom + 6 * (2 * freedom) ** 0.5


def test_trials_up_to_a_success() -> None:
    drawn = _draws(lambda x: torch.empty_like(x).geometric_(0.25), torch.float32)
    for k in range(1, 6):
        share = float((drawn == k).double().mean())
        assert abs(share - 0.25 * 0.75 ** (k - 1)) < 5 * 0.5 / _COUNT**0.5


# ---- recomputation -------------------------------------------------------------------------------


class NoiseLayer(nn.Module):
    """Noise of a learned strength: its gradient needs the noise."""

    def __init__(self, noise: str) -> None:
        super().__init__()
        self.noise = noise
        self.fc = nn.Linear(64, 64)
        self.strength = nn.Parameter(torch.full((64,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.fc(x)
        match self.noise:
            case "normal":
                return y + self.strength * torch.randn_like(y)
            case "uniform":
                return y * (1 + self.strength * torch.rand(y.shape, device=y.device))
            case "gumbel":
                u = torch.rand_like(y).clamp(1e-6, 1 - 1e-6)
                return y + self.strength * -torch.log(-torch.log(u))
            case "exponential":
                return y - self.strength * y.new_empty(y.shape).exponential_().log()
            case _:
                return y + self.strength * torch.randint_like(y, -2, 3)


@pytest.mark.parametrize("noise", ["normal", "uniform", "gumbel", "exponential", "integers"])
def test_backward_draws_again(noise: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    module = nn.Sequential(*[NoiseLayer(noise) for _ in range(3)])
    x = torch.randn(256, 64)
    grads, peaks, saved = [], [], []
    for level in ("0", "1"):
        monkeypatch.setenv("ORTMODULE_MEMORY_OPT_LEVEL", level)
        torch._dynamo.reset()
        model = ORTModule(copy.deepcopy(module), QUIET)
        torch.manual_seed(3)
        model(x).square().sum().backward()
        grads.append([p.grad for p in model.module.parameters()])
        report = last_run_report(model)
        assert report["compiled"] and not report["nodes_aten_fallback"]
        peaks.append(report["planned_peak_bytes"])
        assert report["planned_peak_bytes"] == report["measured_peak_bytes"]
        saved.append(report["saved_bytes"])
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))
    assert saved[1] <= saved[0] - 3 * x.nbytes
    assert peaks[1] < peaks[0]
