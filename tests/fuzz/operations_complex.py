"""Lines with complex numbers: made from real tensors, changed, and mostly made real again."""

from __future__ import annotations

from .operations import operation, some_dim
from .source import Rejected, SourceBuilder, Var, is_static


def _is_complex(v: Var) -> bool:
    return v.dtype.is_complex


def _is_paired(v: Var) -> bool:
    """An even, fixed last size: pairs of numbers."""
    return v.is_float and v.rank >= 1 and is_static(v.shape[-1]) and v.shape[-1] % 2 == 0


@operation(0.7)
def complex_made(g: SourceBuilder) -> object:
    kind = g.rng.randrange(5)
    if kind == 0:
        x = g.pick(_is_paired)
        return g.emit(f"torch.view_as_complex({x.name}.unflatten(-1, (-1, 2)).contiguous())")
    x = g.pick(lambda v: v.is_float and v.rank >= 1)
    forms = ["torch.complex({x}, {x}.sin())", "torch.polar({x}.abs() + 0.1, {x})",
             "{x}.to(torch.promote_types({x}.dtype, torch.complex64)) * (1 + 0.5j)",
             "torch.exp({x}.tanh() * 1j)"]  # fmt: skip
    if kind == 1:
        dim = some_dim(g, x)
        name = g.rng.choice(["fft", "rfft", "ifft"])
        return g.emit(f"torch.fft.{name}({x.name}, dim={dim}, norm='ortho')")
    return g.emit(g.rng.choice(forms).format(x=x.name))


@operation(0.9)
def complex_changed(g: SourceBuilder) -> object:
    z = g.pick(_is_complex)
    forms = ["{z} * (0.5 + 1j)", "{z}.conj()", "{z} + {z}.real", "{z} * {z}.conj()", "torch.exp({z} * 0.1)",
             "{z} / ({z}.abs() + 1)", "-{z}", "{z} * {z}", "{z}.flip(0)", "{z}[..., :1]", "{z}.clone()",
             "{z}.transpose(0, -1)", "{z}.unsqueeze(0)", "torch.where({z}.real > 0, {z}, {z} * 0.5)",
             "torch.cat([{z}, {z} * 1j], dim=-1)", "{z} / (2 - 1j)", "{z}.sgn() * 0.5", "{z}.sum(0)",
             "{z}.mean(-1)", "torch.fft.fft({z}, dim=-1, norm='ortho')", "{z}.reshape(-1)",
             "{z}.resolve_conj().contiguous()"]  # fmt: skip
    kind = g.rng.randrange(4)
    if z.rank == 0:
        raise Rejected
    if kind == 0 and is_static(z.shape[-1]) and z.shape[-1] < 20:
        out = g.rng.choice([1, 2, 3, 4])
        shape = f"{z.shape[-1]}, {out}"
        weight = g.attribute("c", f"nn.Parameter(torch.randn({shape}, dtype=torch.cfloat) * 0.3)")
        return g.emit(f"{z.name} @ {weight}" if z.rank > 1 else f"{z.name}[None] @ {weight}")
    if kind == 1 and is_static(z.shape[-1]):
        weight = g.attribute("c", f"nn.Parameter(torch.randn({z.shape[-1]}, dtype=torch.cfloat))")
        return g.emit(f"{z.name} * {weight}")
    return g.emit(g.rng.choice(forms).format(z=z.name))


@operation(1.2)
def complex_left(g: SourceBuilder) -> object:
    z = g.pick(_is_complex)
    if z.rank == 0:
        raise Rejected
    forms = ["{z}.real", "{z}.imag", "{z}.abs()", "({z} + 0.1).angle()", "torch.view_as_real({z})",
             "torch.view_as_real({z}.resolve_conj()).flatten(-2)", "{z}.abs().square()",
             "torch.fft.ifft({z}, dim=-1, norm='ortho').real", "({z} * {z}.conj()).real",
             "{z}.real * {z}.imag", "torch.fft.irfft({z}, n=4, dim=-1, norm='ortho')"]  # fmt: skip
    return g.emit(g.rng.choice(forms).format(z=z.name))


@operation(0.6)
def rotary(g: SourceBuilder) -> object:
    """Pairs turned by angles that grow with the position, as language models write it."""
    x = g.pick(lambda v: _is_paired(v) and v.rank >= 2)
    half = x.shape[-1] // 2
    rates = g.buffer("rates", f"1.0 / 100.0 ** (torch.arange({half}) / {half})")
    angles = g.emit(f"torch.outer(torch.arange({x.size(x.rank - 2)}).to({x.name}.dtype), {rates})")
    turns = g.emit(f"torch.polar(torch.ones_like({angles.name}), {angles.name})")
    pairs = f"torch.view_as_complex({x.name}.reshape(*{x.name}.shape[:-1], -1, 2))"
    return g.emit(f"torch.view_as_real({pairs} * {turns.name}).flatten(-2)")


@operation(0.5)
def spectral(g: SourceBuilder) -> object:
    """A filter in the domain of frequencies."""
    x = g.pick(lambda v: v.is_float and v.rank >= 2 and is_static(v.shape[-1]) and v.shape[-1] > 1)
    n = x.shape[-1]
    kept = n // 2 + 1
    weight = g.attribute("c", f"nn.Parameter(torch.randn({kept}, dtype=torch.cfloat))")
    spectrum = g.emit(f"torch.fft.rfft({x.name}, dim=-1, norm='ortho') * {weight}")
    return g.emit(f"torch.fft.irfft({spectrum.name}, n={n}, dim=-1, norm='ortho')")
