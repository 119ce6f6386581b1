"""Lines that draw random numbers; only modules that are compared with eager's draws have them."""

from __future__ import annotations

from .operations import operation
from .source import SourceBuilder, Var

_NOISE = [
    "{x} + 0.1 * torch.randn_like({x})",
    "{x} * torch.rand_like({x})",
    "{x} + {x}.new_empty({x}.shape).uniform_(-0.5, 0.5)",
    "{x} * {x}.new_empty({x}.shape).normal_(1.0, 0.2)",
    "{x} + torch.zeros_like({x}).exponential_(2.0)",
    "{x} + torch.randn({x}.shape, dtype={x}.dtype, device={x}.device) * 0.2",
    "{x} * (torch.rand({x}.shape, device={x}.device) < 0.7).to({x}.dtype)",
    "{x} * torch.randint_like({x}, 0, 3)",
    "{x} + torch.randint(0, 5, {x}.shape, device={x}.device)",
    "{x} * {x}.new_ones({x}.shape).random_(1, 4)",
    "{x} + {x}.detach().normal_() * 0.0",
    "{x} * torch.bernoulli(torch.full_like({x}, 0.6))",
    "{x} + torch.empty_like({x}).log_normal_(0.0, 0.3)",
    "{x} * torch.empty_like({x}).geometric_(0.6) * 0.3",
]


def _drop_path(x: Var) -> str:
    """As timm writes it: one number per sample."""
    ones = ", ".join(["1"] * (x.rank - 1))
    return f"{x.name} * {x.name}.new_empty(({x.size(0)}, {ones})).bernoulli_(0.7).div_(0.7)"


@operation(0)
def noise(g: SourceBuilder) -> object:
    x = g.pick(lambda v: v.is_float and v.rank >= 1)
    g.features.add("noise")
    kind = g.rng.randrange(5)
    if kind == 0 and x.rank > 1:
        return g.emit(_drop_path(x))
    if kind == 1:
        u = g.emit(f"torch.rand_like({x.name}).clamp(1e-6, 1 - 1e-6)")
        return g.emit(f"(({x.name} - (-{u.name}.log()).log()) / 0.8).softmax(-1)")
    if kind == 2:
        name = g.rng.choice(["gumbel_softmax({x}, tau=0.9)", "gumbel_softmax({x}, hard=True)"])
        return g.emit("F." + name.format(x=x.name))
    return g.emit(g.rng.choice(_NOISE).format(x=x.name))
