"""Gradients that forward computes itself: by `torch.autograd.grad`, and by transforms of torch.func."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from ortmodule_py import ORTModule
from ortmodule_py.base.errors import CannotLower
from ortmodule_py.trace import interpreter
from tests.semantics import Calls, as_in_eager, assert_whole


def _trained(module: nn.Module, *inputs: Tensor) -> dict[str, Any]:
    def step(model: Any) -> Any:
        result = model(*inputs)
        parts = result if isinstance(result, tuple) else (result,)
        torch.stack([part.square().mean() for part in parts if part.requires_grad]).sum().backward()
        return result

    return as_in_eager(module.double(), step)


def _x(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def _energy_and_slope(energy: Callable[[Any, Tensor], Tensor]) -> Callable[[Any, Tensor], Any]:
    def forward(self: Any, x: Tensor) -> Any:
        x = x.detach().requires_grad_()
        found = energy(self, x)
        (slope,) = torch.autograd.grad(found.sum(), x, create_graph=True)
        return found, slope

    return forward


class OwnExp(torch.autograd.Function):
    """Saves its result."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return gradient * y


def _in_place(h: Tensor) -> Tensor:
    h = h.clone()
    h[:, 1] = h[:, 2].clone().sin()
    h += 1
    h[:, :2] *= 2
    return h * h.sigmoid()


def _hooked(h: Tensor) -> Tensor:
    y = h * 2
    y.register_hook(lambda gradient: gradient * 3)
    return y.square()


def _messages(h: Tensor) -> Tensor:
    to = torch.tensor([0, 2, 2, 1, 0])
    return torch.zeros_like(h).index_add(0, to, h[[1, 1, 0, 2, 2]].tanh() * h[to])


BETWEEN: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "gelu": functional.gelu,
    "logsigmoid": functional.logsigmoid,
    "softmax": lambda h: h.softmax(-1),
    "norm": lambda h: h.norm(dim=-1, keepdim=True) * h,
    "detach": lambda h: h.detach() * h.sin(),
    "a function with a backward": lambda h: OwnExp.apply(h),
    "a hook": _hooked,
    "in place": _in_place,
    "messages": _messages,
    "layer_norm": lambda h: functional.layer_norm(h, (4,), torch.ones(4).double() * 2),
    "rms_norm": lambda h: functional.rms_norm(h, (4,)),
    "group_norm": lambda h: functional.group_norm(h, 2, None, torch.ones(4).double()),
    "instance_norm": lambda h: functional.instance_norm(h[None]).squeeze(0),
    "cosine_similarity": lambda h: functional.cosine_similarity(h, h.sin(), 1)[:, None],
    "a checkpoint": lambda h: checkpoint(lambda z: z.tanh().square(), h, use_reentrant=False),
    "cross_entropy": lambda h: functional.cross_entropy(h, torch.arange(4)),
}


@pytest.mark.parametrize("between", BETWEEN)
def test_an_energy_and_its_slope(between: str) -> None:
    function = BETWEEN[between]
    forward = _energy_and_slope(lambda self, x: function(self.fc(x)))
    assert_whole(_trained(Calls(forward), _x(5 if between == "messages" else 4, 4)))


BENT: dict[str, Callable[[Tensor], Tensor]] = {
    "softplus": functional.softplus,
    "softplus with beta": lambda h: functional.softplus(h, 2.0, 5.0),
    "elu": functional.elu,
    "selu": functional.selu,
    "celu": lambda h: functional.celu(h, 0.7),
    "mish": functional.mish,
    "silu": functional.silu,
    "gelu by tanh": lambda h: functional.gelu(h, approximate="tanh"),
    "huber at its bound": lambda h: functional.huber_loss(
        h - h.detach() + 1, torch.zeros_like(h), reduction="none"
    ),
}


@pytest.mark.parametrize("bent", BENT)
def test_slopes_at_large_values_and_at_0(bent: str) -> None:
    """exp overflows at 1,000, and most of these have a kink or an inflection at 0."""
    values = [-1e3, -40.0, -1.0, -0.0, 0.0, 1.0, 2.5, 40.0, 1e3]
    forward = _energy_and_slope(lambda self, x: BENT[bent](x * self.fc.bias[0].exp()))
    assert_whole(_trained(Calls(forward), torch.tensor(values, dtype=torch.float64)))


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_in_an_energy(training: bool) -> None:
    forward = _energy_and_slope(lambda self, x: self.norm(self.fc(x)).tanh())
    module = Calls(forward, norm=nn.BatchNorm1d(4)).train(training)
    assert_whole(_trained(module, _x(6, 4)))


def test_convolutions_in_an_energy() -> None:
    layers = nn.Sequential(nn.Conv2d(2, 4, 3), nn.SiLU(), nn.MaxPool2d(2), nn.Conv2d(4, 2, 2))
    forward = _energy_and_slope(lambda self, x: self.layers(x))
    assert_whole(_trained(Calls(forward, layers=layers), _x(2, 2, 8, 8)))


def test_a_gradient_that_is_not_differentiated_again() -> None:
    """Attention's backward has no gradient of its own in torch."""

    def forward(self: Any, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        y = functional.scaled_dot_product_attention(self.fc(x), x, x)
        (slope,) = torch.autograd.grad(y.square().sum(), x)
        return self.fc(slope + x)

    assert_whole(_trained(Calls(forward), _x(2, 5, 4)))


def test_inner_steps() -> None:
    """As MAML takes them, with gradients of gradients of parameters."""

    def forward(self: Any, x: Tensor, y: Tensor) -> Tensor:
        weight, bias = self.fc.weight, self.fc.bias
        for _ in range(3):
            loss = functional.mse_loss(functional.linear(x, weight, bias).relu(), y)
            slopes = torch.autograd.grad(loss, (weight, bias), create_graph=True)
            weight, bias = weight - 0.1 * slopes[0], bias - 0.1 * slopes[1]
        return functional.linear(x, weight, bias)

    assert_whole(_trained(Calls(forward), _x(6, 4), _x(6, 4)))


def test_derivatives_of_a_field() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        u = self.fc(x).tanh().sum(1)
        (first,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first[:, 0].sum(), x, create_graph=True)
        (third,) = torch.autograd.grad(second.sum(), x, create_graph=True)
        return u[:, None] + first + second + third

    assert_whole(_trained(Calls(forward), _x(5, 4)))


def test_an_unused_value_has_no_gradient() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
        y = self.fc(a).tanh().sum()
        slopes = torch.autograd.grad(y, [a, b], create_graph=True, allow_unused=True)
        assert slopes[1] is None
        return slopes[0]

    assert_whole(_trained(Calls(forward), _x(5, 4)))


def test_what_cannot_be_traced_breaks_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once: the lines around it stay in the engine."""

    def refuse(*_: Any, **__: Any) -> None:
        raise CannotLower("for a test")

    monkeypatch.setattr(interpreter, "inner_gradient", refuse)

    def forward(self: Any, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(self.fc(x).tanh().sum(), x, create_graph=True)
        return self.fc(slope.tanh())

    report = _trained(Calls(forward), _x(4, 4))
    assert report["compiled"]
    assert report["graph_breaks"]


# ---- torch.func ---------------------------------------------------------------------------------


def _net(self: Any, x: Tensor) -> Tensor:
    y: Tensor = self.out(functional.layer_norm(self.fc(x).tanh(), (4,)))
    return y


def _per_sample(self: Any, x: Tensor) -> Tensor:
    def loss(weights: dict[str, Tensor], row: Tensor) -> Tensor:
        y: Tensor = torch.func.functional_call(self.fc, weights, (row[None],))
        return y.square().mean()

    weights = dict(self.fc.named_parameters())
    found: Tensor = torch.func.vmap(torch.func.grad(loss), (None, 0))(weights, x)["weight"]
    return found


def _laplacian(self: Any, x: Tensor) -> Tensor:
    energy = lambda row: self.out(self.fc(row).tanh()).squeeze(-1)  # noqa: E731
    hessian = torch.func.jacrev(torch.func.grad(energy))
    found: Tensor = torch.func.vmap(lambda row: hessian(row).trace())(x)
    return found


def _partly_constant(self: Any, x: Tensor) -> Tensor:
    def energy(row: Tensor) -> Tensor:
        with torch.no_grad():
            factor = _net(self, row)
        return (factor * _net(self, row) * row.sin().detach()).sum()

    found: Tensor = torch.func.grad(energy)(x)
    return found


def _without_gradients(self: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        slope = torch.func.grad(lambda z: _net(self, z).sum())(x)
    return slope * _net(self, x)


def _bent(self: Any) -> Callable[[Tensor], Tensor]:
    """With activations whose slope is an operator of torch."""
    bends = (functional.silu, functional.mish, functional.gelu, functional.elu, functional.softplus)

    def net(z: Tensor) -> Tensor:
        for bend in bends:
            z = bend(self.fc(z))
        return torch.logit(z.sigmoid())

    return net


TRANSFORMED: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "grad": lambda self, x: torch.func.grad(lambda z: _net(self, z).sum())(x),
    "vjp": lambda self, x: torch.func.vjp(lambda z: self.fc(z).tanh(), x)[1](x)[0],
    "jacrev": lambda self, x: torch.func.jacrev(lambda z: _net(self, z).sum(0))(x),
    "jvp": lambda self, x: torch.func.jvp(_bent(self), (x,), (x.cos(),))[1],
    "hessian": lambda self, x: torch.func.hessian(lambda z: _net(self, z).sum())(x),
    "grads of rows": _per_sample,
    "laplacian": _laplacian,
    "no_grad inside": _partly_constant,
    "no_grad around": _without_gradients,
}


@pytest.mark.parametrize("transform", TRANSFORMED)
def test_a_transform(transform: str) -> None:
    module = Calls(TRANSFORMED[transform], out=nn.Linear(4, 1))
    assert_whole(_trained(module, _x(3, 4)))


PUSHED: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "layer_norm": lambda self, z: functional.layer_norm(z, (4,), self.fc.bias.exp(), self.fc.bias),
    "group_norm": lambda self, z: functional.group_norm(z, 2, self.fc.bias.exp(), self.fc.bias),
    "instance_norm": lambda self, z: functional.instance_norm(
        z[None], weight=self.fc.bias[:3].exp(), bias=self.fc.bias[:3]
    )[0],
    "batch_norm": lambda self, z: functional.batch_norm(
        z, self.fc.bias.detach(), self.fc.bias.detach().exp(), self.fc.bias.exp(), self.fc.bias
    ),
}


def _pushed(self: Any, x: Tensor, norm: Callable[[Any, Tensor], Tensor]) -> Any:
    """The values and tangents that MeanFlow needs."""
    return torch.func.jvp(lambda z: norm(self, self.fc(z)), (x,), (x.cos(),))


@pytest.mark.parametrize("name", PUSHED)
def test_tangents_of_norms_with_weights(name: str) -> None:
    def forward(self: Any, x: Tensor) -> Any:
        values, tangents = _pushed(self, x, PUSHED[name])
        return values, tangents.detach() * values

    assert_whole(_trained(Calls(forward), _x(3, 4)))


def test_gradients_of_tangents_of_a_norm() -> None:
    """Torch's formula holds the statistics fixed there, so this compares with a norm that is spelled out."""

    def standardized(self: Any, z: Tensor) -> Tensor:
        centered = z - z.mean(-1, keepdim=True)
        return centered * torch.rsqrt(centered.square().mean(-1, keepdim=True) + 1e-5)

    def gradients(model: Any) -> Any:
        return torch.autograd.grad(model(_x(3, 4))[1].sin().sum(), model.fc.weight)

    spelled = Calls(lambda self, x: _pushed(self, x, standardized)).double()
    whole = copy.deepcopy(spelled)
    whole.function = lambda self, x: _pushed(self, x, lambda _, z: functional.layer_norm(z, (4,)))
    torch.testing.assert_close(gradients(ORTModule(whole)), gradients(spelled))
