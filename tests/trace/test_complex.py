"""Complex tensors: PyTorch's kernels and gradient formulas inside of the plan."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from ortmodule_py import DebugOptions, LogLevel, ORTModule, last_run_report

from ..compare import assert_gradients_close, gradients

QUIET = DebugOptions(LogLevel.ERROR)


class Rotary(nn.Module):
    """Rotary embedding by multiplication with complex numbers (arXiv:2104.09864)."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        angles = torch.outer(torch.arange(6.0), torch.tensor([1.0, 0.1, 0.01, 0.001]))
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles))

    def forward(self, x: Tensor) -> Tensor:
        pairs = self.linear(x).unflatten(-1, (-1, 2))
        turned = torch.view_as_complex(pairs) * self.turns
        return torch.view_as_real(turned).flatten(-2)


class Fourier(nn.Module):
    """Mixes tokens by a Fourier transform (FNet, arXiv:2105.03824)."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.fft.fft2(self.linear(x)).real


class Filter(nn.Module):
    """Multiplies frequencies by a complex parameter (GFNet, arXiv:2107.00645)."""

    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.randn(4, 8, dtype=torch.complex64))
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        frequencies = torch.fft.rfft(self.linear(x), dim=1, norm="ortho") * self.filter
        return torch.fft.irfft(frequencies, n=x.shape[1], dim=1, norm="ortho")


class Spectral(nn.Module):
    """Mixes channels of low frequencies in place of zeros (FNO, arXiv:2010.08895)."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8, 2, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        low = torch.fft.rfft(x.transpose(1, 2))
        out = torch.zeros_like(low)
        out[..., :2] = torch.einsum("bix,iox->box", low[..., :2], self.weight)
        return torch.fft.irfft(out, n=x.shape[1]).transpose(1, 2)


class Spectrogram(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 64)
        self.head = nn.Linear(9, 3)
        self.register_buffer("window", torch.hann_window(16))

    def forward(self, x: Tensor) -> Tensor:
        wave = self.linear(x).flatten(1)
        bins = torch.stft(wave, 16, 8, window=self.window, return_complex=True)
        return self.head(bins.abs().transpose(1, 2))


class ComplexLayers(nn.Module):
    """A complex input, complex layers and a complex output."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8, dtype=torch.complex64)
        self.second = nn.Linear(8, 4, dtype=torch.complex64)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(torch.complex(x, 0.5 * x))
        return self.second(torch.tanh(x))


class SeveralUses(nn.Module):
    """Conjugates, sums of gradients of one value, and real operands of complex operators."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, dtype=torch.complex64))
        self.scale = nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor) -> Tensor:
        z = x * self.weight + self.scale
        turned = z.conj() * (1.0 + 2.0j) + z * z - z.conj().imag
        with torch.no_grad():
            size = turned.detach().abs().mean() + z.abs().mean()
        power = (z * z.conj()).real + turned.angle()
        return torch.cat([turned.real / size, turned.imag, power, z.mH.sum(1).abs()[..., None]], -1)


def _double(module: nn.Module) -> nn.Module:
    """In float64 and complex128; `Module.double` would drop imaginary parts."""
    for tensor in [*module.parameters(), *module.buffers()]:
        tensor.data = tensor.data.to(torch.complex128 if tensor.is_complex() else torch.float64)
    return module


def _step(module: nn.Module, x: Tensor) -> tuple[Tensor, dict[str, Tensor | None]]:
    x = x.detach().requires_grad_()
    module.zero_grad()
    out = module(x)
    # Real and imaginary parts count differently, so that a wrong conjugate shows.
    weights = torch.linspace(0.5, 1.5, out.numel(), dtype=torch.float64).to(x.dtype).view_as(out)
    loss = (
        (out.real * weights).sum() + (out.imag * weights.flip(0)).sum()
        if (out.is_complex())
        else (out * out * weights).sum()
    )
    loss.backward()
    return out.detach(), gradients(module) | {"x": x.grad}


def _parts(values: dict[str, Tensor | None]) -> dict[str, Tensor | None]:
    return {
        name: torch.view_as_real(v.resolve_conj()) if v is not None and v.is_complex() else v
        for name, v in values.items()
    }


class PartsInPlace(nn.Module):
    """Writes real parts, imaginary parts, slices and diagonals of a complex tensor in place."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, dtype=torch.complex64))
        self.shift = nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor) -> Tensor:
        z = x * self.weight
        z.real.mul_(2.0)
        z.imag.add_(self.shift)
        z[..., 0] = 1j * z[..., 1]
        z.diagonal(0, -1, 1).mul_(0.5j)
        z[:, 2].zero_()
        return z.mul_(self.weight)


MODELS = [PartsInPlace, Rotary, Fourier, Filter, Spectral, Spectrogram, ComplexLayers, SeveralUses]


@pytest.fixture(autouse=True)
def _seed() -> Iterator[None]:
    torch.manual_seed(0)
    yield


@pytest.mark.parametrize("make", MODELS)
def test_gradients_of_complex_models(
    make: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = make()
    x = torch.randn(3, 8 if make is Spectrogram else 6, 8)
    exact_out, exact = _step(_double(copy.deepcopy(module)), x.double())
    eager_out, eager = _step(module, x)
    found = {}
    for level in ("0", "1"):
        monkeypatch.setenv("ORTMODULE_MEMORY_OPT_LEVEL", level)
        model = ORTModule(copy.deepcopy(module), QUIET)
        found[level] = _step(model, x)
        report = last_run_report(model)
        assert report["compiled"] and report["captures"] == 1 and not report["eager_pieces"], report
    out, ours = found["0"]
    assert out.dtype == eager_out.dtype and out.stride() == eager_out.stride()
    torch.testing.assert_close(out, exact_out.to(out.dtype), rtol=1e-4, atol=1e-4)
    for name, gradient in ours.items():
        theirs = eager[name]
        assert gradient is not None and theirs is not None and gradient.dtype == theirs.dtype, name
    assert_gradients_close(_parts(ours), _parts(eager), _parts(exact), floor=1e-5)
    again, gradients_again = found["1"]
    assert torch.equal(out, again)
    assert all(torch.equal(ours[name], gradients_again[name]) for name in ours)  # type: ignore[arg-type]


class Turned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, dtype=torch.complex64))

    def forward(self, z: Tensor) -> Tensor:
        return z * self.weight


@pytest.mark.parametrize(
    "lazy",
    [torch.conj, lambda z: torch._neg_view(z.conj()), lambda z: z.mH],
    ids=["conjugate", "negative", "adjoint"],
)
def test_lazy_bits_of_inputs_and_arriving_gradients(lazy: Callable[[Tensor], Tensor]) -> None:
    module = Turned()
    z, seed = torch.randn(2, 4, 4, dtype=torch.complex64)
    model = ORTModule(copy.deepcopy(module), QUIET)
    results = []
    for run in (module, model):
        leaf = z.clone().requires_grad_()
        out = run(lazy(leaf))
        out.backward(lazy(seed))
        results.append((out.detach(), leaf.grad, run.weight.grad))
    assert last_run_report(model)["compiled"]
    for ours, eager in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(ours, eager)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, dtype=torch.complex64))

    def forward(self, x: Tensor, factor: float) -> Tensor:
        z = x * self.weight
        return (z / factor + factor * z.sub(1j, alpha=factor)).abs()


def test_a_changing_number_keeps_the_imaginary_part() -> None:
    module = Scaled()
    model = ORTModule(copy.deepcopy(module), QUIET)
    for factor in (1.5, 2.5, 0.5, 0.75):
        x = torch.randn(3, 4)
        for run in (module, model):
            run.zero_grad()
            run(x, factor).sum().backward()
        assert last_run_report(model)["compiled"]
        torch.testing.assert_close(model.weight.grad, module.weight.grad)
