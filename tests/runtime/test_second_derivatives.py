"""Gradients of gradients against float64, and equal bits at all levels."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from ortmodule_py import DebugOptions, LogLevel, ORTModule, last_run_report
from tests.compare import assert_gradients_close, exact_copy, gradients, to_double
from tests.semantics import Calls

QUIET = DebugOptions(log_level=LogLevel.ERROR)

Step = Callable[[nn.Module, Any], Tensor]


def mlp(activation: type[nn.Module], width: int = 16) -> nn.Module:
    """Three layers with that activation, one result per row."""
    return nn.Sequential(
        nn.Linear(6, width),
        activation(),
        nn.Linear(width, width),
        activation(),
        nn.Linear(width, 1),
    )


def slope_loss(model: nn.Module, x: Tensor) -> Tensor:
    """Values and input gradients near given numbers, as energies and forces."""
    x = x.detach().requires_grad_()
    y = model(x)
    (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    return (slope - 0.3).square().sum() + y.square().mean()


def penalty(model: nn.Module, x: Tensor) -> Tensor:
    """A critic with WGAN-GP's penalty (Gulrajani et al. 2017, arXiv:1704.00028)."""
    between = (0.7 * x).detach().requires_grad_()
    score = model(between)
    (slope,) = torch.autograd.grad(score, between, torch.ones_like(score), create_graph=True)
    return model(x).mean() + 10 * (slope.flatten(1).norm(dim=1) - 1).square().mean()


def third_order(model: nn.Module, x: Tensor) -> Tensor:
    """A residual that holds a second derivative, as in physics-informed networks."""
    x = x.detach().requires_grad_()
    (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    (bend,) = torch.autograd.grad(slope[:, 0].sum(), x, create_graph=True)
    return (bend[:, 0] - slope[:, 1]).square().sum()


def bend_loss(model: nn.Module, x: Tensor) -> Tensor:
    """A loss of the gradient of a loss of gradients."""
    x = x.detach().requires_grad_()
    (slope,) = torch.autograd.grad(model(x), x, create_graph=True)
    (bend,) = torch.autograd.grad((slope - 0.3).square().sum(), x, create_graph=True)
    return bend.square().sum()


def inner_steps(model: nn.Module, x: Tensor) -> Tensor:
    """The loss behind a step of gradient descent on half of the rows (MAML, arXiv:1703.03400)."""
    names, values = zip(*model.named_parameters(), strict=True)
    for _ in range(2):
        result = torch.func.functional_call(model, dict(zip(names, values, strict=True)), (x[::2],))
        steps = torch.autograd.grad(result.square().mean(), values, create_graph=True)
        values = tuple(v - 0.1 * s for v, s in zip(values, steps, strict=True))
    last = torch.func.functional_call(model, dict(zip(names, values, strict=True)), (x[1::2],))
    return (last - 1).square().mean()


class Attention(nn.Module):
    """Attention between a residual and a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.norm, self.out = nn.Linear(8, 24), nn.LayerNorm(8), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q, k, v = (t.view(b, n, 2, 4).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, 8)
        return self.out(F.gelu(self.norm(x + y)))


class Messages(nn.Module):
    """Two rounds of messages between points, by distance; positions in, one energy out."""

    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.ModuleList(mlp(nn.SiLU, 8) for _ in range(2))
        self.update = nn.ModuleList(nn.Linear(1, 6) for _ in range(2))
        self.energy = mlp(nn.Softplus, 8)

    def forward(self, x: Tensor) -> Tensor:
        sender = torch.arange(5).repeat_interleave(5)
        receiver = torch.arange(5).repeat(5)
        gap = x[sender] - x[receiver]
        atoms = torch.zeros(5, 6, dtype=x.dtype) + 0.1
        for part, update in zip(self.filter, self.update, strict=True):
            sizes = (gap.square().sum(-1, keepdim=True) + 0.1).sqrt()
            weight = part(torch.cat([sizes, sizes.sin(), atoms[sender][:, :4]], -1))
            atoms = atoms + update(torch.zeros(5, 1, dtype=x.dtype).index_add(0, receiver, weight))
        return self.energy(atoms)


def conv(*norm: nn.Module) -> nn.Module:
    """Two convolutions around a norm."""
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), *norm, nn.LeakyReLU(0.2), nn.Conv2d(4, 4, 3, stride=2),
        nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(4, 1),
    )  # fmt: skip


def head(model: nn.Module, x: Tensor) -> Tensor:
    """Gradients of a cross entropy by the inputs."""
    x = x.detach().requires_grad_()
    labels = torch.arange(len(x)) % 4
    loss = F.cross_entropy(model(x), labels, label_smoothing=0.1)
    (slope,) = torch.autograd.grad(loss, x, create_graph=True)
    return loss + slope.square().sum()


class Loss(nn.Module):
    """A classifier that returns its loss; with many classes, logits are never in memory as a whole."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.SiLU(), nn.Linear(8, classes))

    def forward(self, x: Tensor) -> Tensor:
        return F.cross_entropy(self.layers(x), torch.arange(x.shape[0]) % 4)


class ProductOfItsOwn(torch.autograd.Function):
    """An operator without a rule, and a gradient that is not that of the operator."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.logcumsumexp(1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return grad * x.sin()


class OwnProducts(nn.Module):
    """Keeps the gradient of a user's function."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand([]))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = ProductOfItsOwn.apply(self.scale * x)
        return y


class Running(nn.Module):
    """Reads a buffer that it has changed, and whose old value nothing keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.rand(6) + 0.5)
        self.scale = nn.Parameter(torch.rand([]))

    def forward(self, x: Tensor) -> Tensor:
        self.mean += x.mean(0).detach()
        return (self.scale + x - 0.1 * self.mean).relu().cummax(0).values


class Products(nn.Module):
    """Torch's formula for the gradient of cumprod divides by elements, of which some are 0."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand([]))

    def forward(self, x: Tensor) -> Tensor:
        return (self.scale * x.round()).cumprod(1)


class ComplexProducts(Products):
    """The same by an operator of torch, whose formula divides where it is not differentiated."""

    def forward(self, x: Tensor) -> Tensor:
        rounded = torch.complex(self.scale * x.round(), torch.zeros_like(x))
        return torch.view_as_real(rounded.cumprod(1)).sum(-1)


class Lengths(nn.Module):
    """Operators of torch, whose gradients are traced: what they read of forward has a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return self.last((h + 0.01).norm(dim=1, keepdim=True) * h.tanh())


class Detached(nn.Module):
    """A gate without a gradient, a number that forward draws, and an unused parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 1)
        self.unused = nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        with torch.no_grad():
            gate = torch.sigmoid(h)
        return self.last(h.tanh() * gate + h.sin() * h.detach())


class Recurrent(nn.Module):
    """An LSTM with projected states in both directions, a GRU and an RNN."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 5, bidirectional=True, proj_size=3)
        self.gru, self.rnn = nn.GRU(6, 4), nn.RNN(4, 3, nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.gru(self.lstm(x)[0])
        y, last = self.rnn(y)
        return y.sum(-1) + last.square().sum()


class Rows(nn.Module):
    """Rows as steps of a batch of one."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, None]


class CopiedRows(nn.Module):
    """A value in transposed memory: backward keeps a copy of its rows, not the value."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.rnn = nn.Linear(6, 4), nn.RNN(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = x.transpose(1, 2) * 0.5
        return F.gelu(self.layer(y)).square().sum(-1) + self.rnn(y)[0].sum(-1)


class Packed(nn.Module):
    """Recurrent layers on sequences of several lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.gru = nn.LSTM(6, 4, bidirectional=True), nn.GRU(8, 4)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, lengths, enforce_sorted=False)
        y, (h, _) = self.lstm(packed)
        y, _ = self.gru(y)
        return pad_packed_sequence(y)[0].sum(-1) + h.square().sum()


def packed_slopes(model: nn.Module, x: Tensor) -> Tensor:
    """As `slope_loss`, of sequences of lengths 2, 5 and 1."""
    x = x.detach().requires_grad_()
    y = model(x, torch.tensor([2, 5, 1]))
    (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    return (slope - 0.3).square().sum() + y.square().mean()


class Bessel(nn.Module):
    """A function of torch's that the engine has no op for."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.special.i0(self.layer(x)).sum(-1)


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], Step]] = {
    "tanh": (lambda: mlp(nn.Tanh), (5, 6), slope_loss),
    "silu": (lambda: mlp(nn.SiLU), (5, 6), slope_loss),
    "softplus": (lambda: mlp(nn.Softplus), (5, 6), slope_loss),
    "gelu": (lambda: mlp(nn.GELU), (5, 6), slope_loss),
    "relu": (lambda: mlp(nn.ReLU), (5, 6), penalty),
    "maml": (lambda: mlp(nn.SiLU), (6, 6), inner_steps),
    "layer_norm": (
        lambda: nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.SiLU(), nn.Linear(8, 1)),
        (5, 6),
        slope_loss,
    ),
    "attention": (Attention, (2, 5, 8), slope_loss),
    "messages": (Messages, (5, 3), slope_loss),
    "conv": (conv, (3, 2, 8, 8), penalty),
    "batch_norm": (lambda: conv(nn.BatchNorm2d(4)), (3, 2, 8, 8), slope_loss),
    "group_norm": (lambda: conv(nn.GroupNorm(2, 4)), (3, 2, 8, 8), slope_loss),
    "outer_loss": (lambda: nn.Sequential(mlp(nn.Tanh)[:-1], nn.Linear(16, 4)), (5, 6), head),
    "inner_loss": (lambda: Loss(4), (5, 6), slope_loss),
    "loss_head": (lambda: Loss(1024), (5, 6), slope_loss),
    "third": (lambda: mlp(nn.Tanh), (5, 6), third_order),
    "third_inner_loss": (lambda: Loss(4), (5, 6), bend_loss),
    "products": (Products, (5, 6), slope_loss),
    "complex_products": (ComplexProducts, (5, 6), slope_loss),
    "own_products": (OwnProducts, (5, 6), slope_loss),
    "running": (Running, (5, 6), penalty),
    "lengths": (Lengths, (5, 6), slope_loss),
    "detached": (Detached, (5, 6), slope_loss),
    "recurrent": (Recurrent, (5, 2, 6), slope_loss),
    "copied_rows": (CopiedRows, (5, 6, 3), slope_loss),
    "packed": (Packed, (5, 3, 6), packed_slopes),
    "third_recurrent": (lambda: nn.Sequential(Rows(), Recurrent()), (5, 6), third_order),
    "third_bessel": (Bessel, (5, 6), third_order),
}


def run(model: nn.Module, step: Step, x: Tensor) -> dict[str, Tensor | None]:
    """The gradients of a second step, with its loss: its forward finds what the first compiled."""
    for _ in range(2):
        model.zero_grad()
        torch.manual_seed(1)
        loss = step(model, x)
        loss.backward()
    found = {name.removeprefix("_original_module."): g for name, g in gradients(model).items()}
    return found | {"loss": loss.detach()}


def _near_0(loss: Callable[..., Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: loss(x, torch.zeros_like(x), reduction="none")


BENDS = [F.softplus, F.elu, F.selu, F.hardswish, F.leaky_relu]


@pytest.mark.parametrize("bend", [*BENDS, _near_0(F.smooth_l1_loss), _near_0(F.huber_loss)])
def test_kinks_at_0_and_large_values(bend: Callable[[Tensor], Tensor]) -> None:
    """Where eager PyTorch has a derivative at a kink, the same one; exp overflows at 100."""

    def bends(model: nn.Module) -> Tensor:
        x = torch.tensor([-100.0, -3, -1, -0.0, 0, 1, 3, 30, 100], requires_grad=True)
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        return torch.autograd.grad(slope.sum(), x)[0]

    module = Calls(lambda self, x: bend(x))
    torch.testing.assert_close(bends(ORTModule(module)), bends(module))


@pytest.mark.parametrize("name", CASES)
def test_against_float64(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, sizes, step = CASES[name]
    torch._dynamo.reset()
    torch.manual_seed(0)
    module = make()
    x = torch.randn(sizes)
    found = []
    for level in (0, 1):
        monkeypatch.setenv("ORTMODULE_MEMORY_OPT_LEVEL", str(level))
        ours = ORTModule(copy.deepcopy(module), QUIET)
        found.append(run(ours, step, x))
        report = last_run_report(ours)
        assert report["compiled"]
        peaks = report["planned_peak_bytes"], report["measured_peak_bytes"]
        assert peaks[0] == peaks[1] or not report["prediction_exact"], peaks
    eager = copy.deepcopy(module)
    exact = exact_copy(module)
    # Torch's other kernels of attention have no second derivative.
    with sdpa_kernel(SDPBackend.MATH):
        results = [run(m, step, v) for m, v in ((eager, x), (exact, to_double(x)))]
    assert_gradients_close(found[0], *results, floor=1e-6)
    for key, gradient in found[0].items():
        again = found[1][key]
        assert (gradient is None) == (again is None)
        assert gradient is None or again is None or torch.equal(gradient, again), key


class Residual(nn.Module):
    """Three blocks, of which one differs, so that only their names say that they are layers."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Linear(width, 64), act(), nn.Linear(64, 64), act(), nn.Linear(64, width)
            )
            for act in (nn.Tanh, nn.SiLU, nn.SiLU)
        )

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x).sin()
        return x


def test_levels_and_budgets_count_the_second_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the second step on: the first one shows what the passes take."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    module, x = Residual(), torch.randn(1024, 32)

    def step() -> tuple[dict[str, Tensor | None], int]:
        model = ORTModule(copy.deepcopy(module), QUIET)
        found = run(model, slope_loss, x)
        return found, last_run_report(model)["measured_peak_bytes"]

    plain, peak = step()
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_LEVEL", "1")
    level, least = step()
    assert least < 0.7 * peak, (least, peak)
    monkeypatch.delenv("ORTMODULE_MEMORY_OPT_LEVEL")
    budget = (peak + least) // 2
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_BUDGET", f"activations:{budget}")
    fitted, used = step()
    assert used <= budget, (used, budget)
    for key, gradient in plain.items():
        for other in (level[key], fitted[key]):
            assert gradient is None or (other is not None and torch.equal(gradient, other)), key


def test_random_numbers_are_drawn_again() -> None:
    """Dropout in the second pass drops what forward has dropped."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = ORTModule(nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5), nn.Linear(64, 1)), QUIET)
    x = torch.randn(3, 4, requires_grad=True)
    (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    slope.sum().backward()
    first, last = model.module[0].weight, model.module[2].weight
    assert first.grad is not None and last.grad is not None
    # The slope is last @ (mask * first), so by Euler's theorem for either weight it is its own
    # product with the gradient; with another mask it is not.
    for weight in (first, last):
        assert weight.grad is not None
        torch.testing.assert_close((weight.grad * weight).sum(), slope.sum())


def test_a_model_that_never_asks_compiles_nothing() -> None:
    torch._dynamo.reset()
    model = ORTModule(mlp(nn.Tanh), QUIET)
    x = torch.randn(5, 6, requires_grad=True)
    model(x).sum().backward(retain_graph=True)
    facts = [piece.compiled.facts() for piece in model._compiler.pieces]
    assert [f["derived_pieces"] for f in facts] == [0]
    torch.autograd.grad(model(x).sum(), x, create_graph=True)
    assert [p.compiled.facts()["derived_pieces"] for p in model._compiler.pieces] == [1]


class Forces(nn.Module):
    """Returns an energy and its negative gradient, which forward computes."""

    def __init__(self) -> None:
        super().__init__()
        self.energy = mlp(nn.SiLU)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x.requires_grad_()
        energy = self.energy(x).sum()
        (slope,) = torch.autograd.grad(energy, x, create_graph=self.training)
        return energy, -slope


@pytest.mark.parametrize(("training", "flag"), [(True, False), (True, True), (False, False)])
def test_gradients_inside_of_forward(training: bool, flag: bool) -> None:
    """Also with Dynamo's flag for it, which is for others."""
    torch._dynamo.reset()
    torch._dynamo.config.trace_autograd_ops = flag
    torch.manual_seed(0)
    eager = Forces().double().train(training)
    ours = ORTModule(copy.deepcopy(eager), QUIET)
    x = torch.randn(5, 6, dtype=torch.float64)
    results = []
    for model in (ours, eager):
        energy, forces = model(x.clone())
        if training:
            (energy + forces.square().sum()).backward()
        results.append([energy, forces, *(p.grad for p in model.parameters() if training)])
    torch._dynamo.config.trace_autograd_ops = False
    torch.testing.assert_close(results[0], results[1])
    assert last_run_report(ours)["compiled"]


def test_a_hessian() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    eager = mlp(nn.Softplus).double()
    ours = ORTModule(copy.deepcopy(eager), QUIET)
    x = torch.randn(2, 6, dtype=torch.float64)
    found, expected = (
        torch.autograd.functional.hessian(lambda v, m=m: m(v).square().sum(), x)
        for m in (ours, eager)
    )
    torch.testing.assert_close(found, expected)


class Turned(nn.Module):
    """An output that is the parts, or the complex numbers, of what backward reads."""

    def __init__(self, returns_parts: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3, bias=False)
        self.returns_parts = returns_parts
        self.register_buffer("turn", torch.polar(torch.ones(2), torch.tensor([0.3, 2.0])))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        pairs = x.unflatten(-1, (2, 2))
        if self.returns_parts:
            turned = torch.view_as_real(torch.view_as_complex(pairs) * self.turn)
            return self.layer(turned.flatten(-2)).pow(3), turned
        grown = pairs.exp()
        return self.layer(grown.flatten(-2)).pow(3), torch.view_as_complex(grown)


@pytest.mark.parametrize("returns_parts", [True, False])
def test_outputs_that_are_complex_views(returns_parts: bool) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    eager = Turned(returns_parts)
    ours = ORTModule(copy.deepcopy(eager), QUIET)
    results = []
    for model in (ours, eager):
        x = torch.linspace(-1, 1, 24).view(3, 2, 4).requires_grad_()
        y, turned = model(x)
        (slope,) = torch.autograd.grad(y.sum() + turned.abs().sum(), x, create_graph=True)
        loss = slope.square().sum() + turned.real.square().sum()
        results.append([slope, *torch.autograd.grad(loss, [x, *model.parameters()])])
    torch.testing.assert_close(*results)
    assert last_run_report(ours)["compiled"]
