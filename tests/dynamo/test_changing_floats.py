"""Python floats that change with every call: two captures, and the numbers of eager PyTorch."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import update_bn

from ortmodule_py import ORTModule, last_run_report
from tests.semantics import QUIET, Calls, as_in_eager, assert_compiled

Use = Callable[[Tensor, float], Tensor]


def _assigned(y: Tensor, t: float) -> Tensor:
    y = y.clone()
    y[0] = t
    y[:, 1] = t
    return y


# Computed by the same operations in the same order as in eager.
EXACT: dict[str, Use] = {
    "mul": lambda y, t: y * t,
    "add": lambda y, t: y + t,
    "rsub": lambda y, t: t - y,
    "div": lambda y, t: y / t,
    "rdiv": lambda y, t: t / (y * y + 1),
    "clamp": lambda y, t: y.clamp(-t, t),
    "clamp_min": lambda y, t: y.clamp_min(t),
    "clamp_max": lambda y, t: y.clamp(max=t),
    "masked_fill": lambda y, t: y.masked_fill(y > 0, t),
    "where_other": lambda y, t: torch.where(y > 0, y, t),
    "where_self": lambda y, t: torch.where(y > 0, t, y),
    "compare": lambda y, t: y * (y > t) + y * (y <= -t),
    "leaky_relu": lambda y, t: F.leaky_relu(y, t),
    "hardshrink": lambda y, t: F.hardshrink(y, t),
    "full": lambda y, t: y * torch.full((4,), t, dtype=y.dtype),
    "full_like": lambda y, t: y * torch.full_like(y, t),
    "new_full": lambda y, t: y * y.new_full((4,), t),
    "fill": lambda y, t: y * torch.empty_like(y).fill_(t),
    "tensor": lambda y, t: y * torch.tensor(t, dtype=y.dtype),
    "index_fill": lambda y, t: y.index_fill(0, torch.tensor([0]), t),
    "assignment": _assigned,
    "integers": lambda y, t: y + torch.arange(4) * t,
    "python": lambda y, t: y * (0.1 + t + 0.2) * max(t, 0.7) * abs(t - 1) * math.sqrt(t) * -t,
    "whole": lambda y, t: y * int(t * 4) * math.floor(t * 3) + (t % 0.3) * (t // 0.2),
    "rounded": lambda y, t: y * round(t * 10),
    "cosine": lambda y, t: y * math.cos(t) * math.tanh(t) * t**0.7,
}

# Within a few roundings, as are these operators with a constant.
CLOSE: dict[str, Use] = {
    "alpha": lambda y, t: torch.add(y, y.tanh(), alpha=t) + torch.sub(y, y.tanh(), alpha=t),
    "lerp": lambda y, t: torch.lerp(y, y.tanh(), t),
    "power": lambda y, t: (y * y + 1) ** t,
    "base": lambda y, t: (t + 1) ** y,
    "addcmul": lambda y, t: torch.addcmul(y, y.tanh(), y, value=t),
    "addcdiv": lambda y, t: torch.addcdiv(y, y, y * y + 1, value=t),
    "addcmul_": lambda y, t: y.clone().addcmul_(y.tanh(), y, value=t),
    "addcdiv_": lambda y, t: y.clone().addcdiv_(y, y * y + 1, value=t),
    "remainder": lambda y, t: y % t + torch.fmod(y, t),
    "normalize": lambda y, t: F.normalize(y, eps=t),
    "label_smoothing": lambda y, t: F.cross_entropy(y, torch.arange(3), label_smoothing=t / 3) * y,
    "uniform_noise": lambda y, t: y + torch.empty_like(y).uniform_(-t, t),
    "gumbel": lambda y, t: F.gumbel_softmax(y, tau=t),
    "sum": lambda y, t: torch.cumsum(y * t, -1),
    "vector_norm": lambda y, t: torch.linalg.vector_norm(F.relu(y), t, -1),
    "norms": lambda y, t: y.norm(p=t) + torch.norm(y, t, -1, True) + torch.linalg.norm(y, t, dim=0),
    "normalize_p": lambda y, t: F.normalize(y, p=t),
    "pairwise_distance": lambda y, t: F.pairwise_distance(y, y.tanh(), p=t)[:, None] * y,
}


# Taken as constants, so that the graph breaks at them from the fourth value on.
CONSTANTS: dict[str, Use] = {
    "hardtanh": lambda y, t: F.hardtanh(y, -t, t),
    "threshold": lambda y, t: F.threshold(y, t, t),
    "softshrink": lambda y, t: F.softshrink(y, t),
    "pad": lambda y, t: F.pad(y, (1, 0), value=t)[:, :4],
    "nan_to_num": lambda y, t: torch.nan_to_num(y, nan=t, posinf=t),
    "float_power": lambda y, t: torch.float_power(y * y + 1, t).to(y.dtype),
    "elu": lambda y, t: F.elu(y * 100, t),
    "softplus": lambda y, t: F.softplus(y * 50, t),
    "addmm": lambda y, t: torch.addmm(y, y, torch.ones(4, 4, dtype=y.dtype), beta=t, alpha=t),
    "layer_norm": lambda y, t: F.layer_norm(y, (4,), eps=t),
    "rms_norm": lambda y, t: F.rms_norm(y, (4,), eps=t),
    "group_norm": lambda y, t: F.group_norm(y, 2, eps=t),
    "batch_norm": lambda y, t: F.batch_norm(y, None, None, training=True, eps=t),
    "cosine_similarity": lambda y, t: F.cosine_similarity(y, y.tanh(), eps=t)[:, None] * y,
    "smooth_l1": lambda y, t: F.smooth_l1_loss(y, y.tanh(), beta=t) * y,
    "huber": lambda y, t: F.huber_loss(y, y.tanh(), delta=t) * y,
    "margin": lambda y, t: F.margin_ranking_loss(y, y.tanh(), torch.ones(3, 4), margin=t) * y,
    "triplet": lambda y, t: F.triplet_margin_loss(y, y.tanh(), y * y, margin=t) * y,
    "attention_scale": lambda y, t: F.scaled_dot_product_attention(
        y[None], y[None], y[None], scale=t
    )[0],
    "logit": lambda y, t: torch.logit(y.sigmoid(), eps=t / 10),
    "celu": lambda y, t: F.celu(y * 100, t),
    "erf": lambda y, t: y * math.erf(t),
    "linspace": lambda y, t: y + torch.linspace(0, t, 4),
}


def _all_but_a_few_slow(uses: dict[str, Use], quick: list[str]) -> list[Any]:
    return [pytest.param(use, marks=() if use in quick else pytest.mark.slow) for use in uses]


class Uses(nn.Module):
    """Each use on the result of a layer of its own."""

    def __init__(self, uses: dict[str, Use]) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({name: nn.Linear(4, 4) for name in uses})
        self.uses = uses

    def forward(self, x: Tensor, t: float) -> dict[str, Tensor]:
        return {name: use(self.layers[name](x), t) for name, use in self.uses.items()}


def _both(
    uses: dict[str, Use], dtype: torch.dtype, steps: int = 6
) -> tuple[list[dict[str, tuple[Tensor, Tensor, Tensor, Tensor]]], dict[str, Any]]:
    """(result, eager's result, gradient, eager's gradient) of each use per step."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    eager = Uses(uses).to(dtype)
    model = ORTModule(copy.deepcopy(eager), QUIET)
    found = []
    for i in range(steps):
        x, t = torch.randn(3, 4, dtype=dtype), 0.4 + 0.137 * i
        results, gradients = [], []
        for runner, module in ((model, model.module), (eager, eager)):
            torch.manual_seed(i)
            module.zero_grad()
            given = runner(x, t)
            sum(y.sum() for y in given.values()).backward()
            results.append({name: y.detach() for name, y in given.items()})
            gradients.append({name: module.layers[name].weight.grad.clone() for name in uses})
        parts = (*results, *gradients)
        found.append({name: tuple(part[name] for part in parts) for name in uses})
    return found, dict(last_run_report(model))


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        *(pytest.param(t, marks=pytest.mark.slow) for t in (torch.bfloat16, torch.float64)),
    ],
)
def test_exactly_eagers_numbers(dtype: torch.dtype) -> None:
    found, report = _both(EXACT, dtype)
    assert_compiled(report, captures=2)
    # The first number is a constant, which the engine keeps wider than eager in 16-bit sums.
    for step in found[1 if dtype == torch.bfloat16 else 0 :]:
        for use, (ours, eagers, gradient, eagers_gradient) in step.items():
            assert torch.equal(ours, eagers), use
            assert torch.equal(gradient, eagers_gradient), use


def test_nearly_eagers_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_RNG", "torch")
    found, report = _both(CLOSE, torch.float32)
    assert_compiled(report, captures=2)
    for step in found:
        for use, (ours, eagers, gradient, eagers_gradient) in step.items():
            torch.testing.assert_close(ours, eagers, msg=use)
            torch.testing.assert_close(gradient, eagers_gradient, msg=use)


@pytest.mark.parametrize(
    "use",
    _all_but_a_few_slow(CONSTANTS, ["hardtanh", "addmm", "attention_scale", "erf", "linspace"]),
)
def test_a_constant_of_a_call_is_captured_three_times(
    use: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Then the graph breaks there, in front of eager PyTorch's call."""
    torch._dynamo.reset()
    eager = Calls(lambda self, x, t: CONSTANTS[use](self.fc(x), t))
    model = ORTModule(copy.deepcopy(eager))
    logging.getLogger(model._logger.name).addHandler(caplog.handler)
    captures = []
    for t in (0.3, 0.45, 0.6, 0.75, 0.9, 0.8, 0.7, 0.5):
        x = torch.randn(3, 4)
        y, wanted = model(x, t), eager(x, t)
        y.sum().backward()
        wanted.sum().backward()
        torch.testing.assert_close(y, wanted)
        torch.testing.assert_close(model.fc.weight.grad, eager.fc.weight.grad)
        captures.append(last_run_report(model)["captures"])
    # What lies around the break is captured, too, some of it for one more number that changes.
    assert captures[:3] == [1, 2, 3] and captures[-1] == captures[-2] <= 9, captures
    texts = [record.getMessage() for record in caplog.records]
    assert sum("is a capture of its own" in text for text in texts) == 1, texts
    (text,) = (text for text in texts if "the graph breaks here" in text)
    assert "three values of a float were captured" in text and "test_changing_floats.py:" in text
    assert last_run_report(model)["eager_pieces"] == []


def _cut(y: Tensor, t: float) -> Tensor:
    k = int(4 * t)
    y = y.clone()
    y[:, 1 : 1 + k] = 0
    return y


# The integers made of the floats below are 1, 2 and 3.
SIZES: dict[str, Use] = {
    "cut": _cut,
    "kept": lambda y, t: y[:, : int(y.shape[1] * t)].mean(1),
    "drawn": lambda y, t: y[:, torch.arange(4).flip(0)[: int(4 * t)]],
    "batch": lambda y, t: y[: max(1, int(4 * t))],
    "ceiling": lambda y, t: y[:, : math.ceil(4 * t - 1)] * math.ceil(4 * t),
    "rounded": lambda y, t: y.tril(round(4 * t - 0.5)),
    "repeated": lambda y, t: y.repeat(1, int(4 * t)),
    "rolled": lambda y, t: y.roll(int(4 * t), 1),
    "padded": lambda y, t: F.pad(y, (0, int(4 * t))),
    "mean": lambda y, t: y[:, : int(4 * t)].mean(1) / y[:, : int(4 * t)].shape[1],
    "zeros": lambda y, t: y[:, :1] * y.new_zeros(2, int(4 * t)).sum(),
    "position": lambda y, t: y[:, int(4 * t)],
    "row": lambda y, t: y * torch.eye(4)[int(4 * t)],
}


@pytest.mark.parametrize(
    "use", _all_but_a_few_slow(SIZES, ["cut", "batch", "ceiling", "rounded", "position"])
)
def test_a_size_made_of_a_float_is_a_capture_per_size(
    use: str, caplog: pytest.LogCaptureFixture
) -> None:
    torch._dynamo.reset()
    eager = Calls(lambda self, x, t: SIZES[use](self.fc(x), t))
    model = ORTModule(copy.deepcopy(eager))
    logging.getLogger(model._logger.name).addHandler(caplog.handler)
    values = (0.26, 0.3, 0.55, 0.35, 0.6, 0.8, 0.9, 0.7, 0.33)
    for i, t in enumerate(values):
        x = torch.randn(3 + i % 3, 4)
        y, wanted = model(x, t), eager(x, t)
        y.sum().backward()
        wanted.sum().backward()
        torch.testing.assert_close(y, wanted)
        torch.testing.assert_close(model.fc.weight.grad, eager.fc.weight.grad)
    assert_compiled(last_run_report(model), captures=4)
    said = [r.getMessage() for r in caplog.records if "is a capture of its own" in r.getMessage()]
    assert len(said) == 1, said
    assert "specialized in a size or an index" in said[0] and "test_changing_floats.py:" in said[0]


def test_an_integer_made_of_a_float_as_an_output(caplog: pytest.LogCaptureFixture) -> None:
    torch._dynamo.reset()
    model = ORTModule(Calls(lambda self, x, t: (self.fc(x), int(4 * t))))
    logging.getLogger(model._logger.name).addHandler(caplog.handler)
    for t in (0.26, 0.3, 0.55, 0.35, 0.6):
        assert model(torch.ones(3, 4), t)[1] == int(4 * t)
    assert_compiled(last_run_report(model), captures=3)
    assert any("specialized in the outputs" in r.getMessage() for r in caplog.records)


class Slope(nn.Module):
    def __init__(self, slope: float) -> None:
        super().__init__()
        self.fc, self.slope = nn.Linear(4, 4), slope

    def forward(self, x: Tensor) -> Tensor:
        return F.elu(self.fc(x), self.slope)


def test_the_number_of_another_model_is_none_that_changes(caplog: pytest.LogCaptureFixture) -> None:
    torch._dynamo.reset()
    for slope in (0.2, 0.4, 0.5):
        model = ORTModule(Slope(slope))
        logging.getLogger(model._logger.name).addHandler(caplog.handler)
        model(torch.ones(3, 4)).sum().backward()
        model.eval()
        with torch.no_grad():
            model(torch.ones(3, 4))
    assert not any("specialized" in r.getMessage() for r in caplog.records)
    for slope in (0.7, 0.8):
        model.slope = slope
        model(torch.ones(3, 4))
    assert sum("specialized in elu" in r.getMessage() for r in caplog.records) == 1


class Reversed(torch.autograd.Function):
    """Turns the gradient round, by a factor that a schedule gives."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return -ctx.factor * grad, None


def test_gradient_reversal_with_a_schedule() -> None:
    found, report = _both({"reversed": lambda y, t: Reversed.apply(y, 2 * t)}, torch.float32)
    assert_compiled(report, captures=2)
    for step in found:
        _, _, gradient, eagers = step["reversed"]
        assert torch.equal(gradient, eagers)


def test_momentum_of_a_batch_norm() -> None:
    def step(model: Any) -> list[Tensor]:
        found = []
        for i in range(6):
            model.norm.momentum = 0.1 + 0.05 * i
            y = model(torch.randn(5, 4))
            y.square().sum().backward()
            found.append(y)
        return found

    module = Calls(lambda self, x: self.norm(self.fc(x)), norm=nn.BatchNorm1d(4))
    assert_compiled(as_in_eager(module, step), captures=2)


@pytest.mark.parametrize("sequential", [True, False])
def test_batch_norm_with_the_mean_of_all_batches(sequential: bool) -> None:
    """Its momentum is 1 / n, which it reads from a tensor."""

    def step(model: Any) -> list[Tensor]:
        found = []
        for i in range(5):
            y = model(torch.randn(5 + i, 4))
            y.square().sum().backward()
            found.append(y)
        return found

    norm = nn.BatchNorm1d(4, momentum=None)
    module: nn.Module = Calls(lambda self, x: self.norm(self.fc(x)).relu(), norm=norm)
    if sequential:
        module = nn.Sequential(nn.Linear(4, 4), norm, nn.ReLU(), nn.Linear(4, 2))
    assert_compiled(as_in_eager(module, step))


def test_statistics_of_16_bit_values_are_wider() -> None:
    """As eager has them: the gradient of what they cancel is rounding, and must not be more of it."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    eager = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5, momentum=None, affine=False))
    model = ORTModule(copy.deepcopy(eager))
    x = torch.randn(6, 6)
    for runner in (eager, model):
        with torch.autocast("cpu", torch.bfloat16):
            runner(x).square().sum().backward()
    for mine, wanted in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, wanted.grad, rtol=0, atol=1e-6)
    assert_compiled(last_run_report(model))


def test_update_bn_leaves_the_model_compiled() -> None:
    def step(model: Any) -> Tensor:
        for _ in range(2):
            model(torch.randn(6, 4)).sum().backward()
            update_bn([torch.randn(5, 4), torch.randn(7, 4)], model)
        assert model[1].momentum == 0.1
        result: Tensor = model(torch.randn(3, 4))
        return result

    layers = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    assert_compiled(as_in_eager(layers, step), captures=2)


def _dropped(model: Any, p: float) -> Tensor:
    model.drop.p = p
    kept: Tensor = model(torch.ones(500, 40))
    return kept


def test_dropout_with_a_schedule() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    layer = nn.Linear(40, 40, bias=False)
    nn.init.eye_(layer.weight)
    model = ORTModule(Calls(lambda self, x: self.drop(self.fc(x)), drop=nn.Dropout(0.1)), QUIET)
    model.module.fc = layer
    masks = []
    for i in range(1, 9):
        p = 0.1 * i
        y = _dropped(model, p)
        kept = y != 0
        # Five standard deviations of the number of zeros.
        assert abs(float((~kept).float().mean()) - p) < 5 * math.sqrt(p * (1 - p) / y.numel())
        torch.testing.assert_close(y[kept], torch.full_like(y[kept], 1 / (1 - p)))
        layer.weight.grad = None
        y.sum().backward()
        wanted = y.detach().sum(0)[:, None].expand(40, 40)
        torch.testing.assert_close(layer.weight.grad, wanted, rtol=1e-5, atol=1e-5)
        masks.append(kept)
    assert_compiled(last_run_report(model), captures=2)
    assert not torch.equal(_dropped(model, 0.5), _dropped(model, 0.5))
    torch.manual_seed(7)
    first = _dropped(model, 0.5)
    torch.manual_seed(7)
    assert torch.equal(first, _dropped(model, 0.5))
    assert torch.equal(_dropped(model, 0.0), torch.ones(500, 40))
    assert not _dropped(model, 1.0).any()


def test_dropout_with_eagers_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each value of p is a capture then, since eager draws in another way than by comparing."""
    monkeypatch.setenv("ORTMODULE_RNG", "torch")

    def step(model: Any) -> list[Tensor]:
        return [_dropped(model, 0.1 * i) for i in range(1, 5)]

    drop = Calls(lambda self, x: self.drop(x) + 0 * self.fc.weight.sum(), drop=nn.Dropout(0.1))
    assert as_in_eager(drop, step)["captures"] == 4


def test_a_thousand_steps() -> None:
    def use(y: Tensor, t: float) -> Tensor:
        y = F.dropout(torch.lerp(y, y.tanh(), t), t).clamp(-t * 9, 9 * t) / (t + 1)
        y = y + torch.add(y, y, alpha=t) ** 2
        return torch.where(y > t, y, t).masked_fill(y > 8 * t, t)

    torch._dynamo.reset()
    model = ORTModule(Calls(lambda self, x, t: use(self.fc(x), t)), QUIET)
    x = torch.randn(3, 4)
    for i in range(1000):
        model(x, 0.1 + 0.0007 * i).sum().backward()
    assert_compiled(last_run_report(model), captures=2)


def test_arithmetic_on_lines_of_its_own() -> None:
    def use(y: Tensor, t: float) -> Tensor:
        half = t * 0.5
        bounded = max(half, 0.3)
        whole = int(10 * t)
        return y * (bounded + whole)

    found, report = _both({"lines": use}, torch.float32)
    assert report["captures"] == 2
    for step in found:
        ours, eagers, gradient, eagers_gradient = step["lines"]
        torch.testing.assert_close(ours, eagers)
        torch.testing.assert_close(gradient, eagers_gradient)


def test_a_number_of_another_module_stays_a_constant() -> None:
    """Dynamo takes a float for changing where two modules of a class differ in it."""
    for ratio in (0.1, 0.2):
        model = ORTModule(Dropped(ratio))
        model(torch.randn(4, 8)).sum().backward()
        (piece,) = model._compiler.pieces
        assert f"Dropout<ratio={ratio}" in piece.compiled.text("joint")


class Dropped(nn.Module):
    def __init__(self, ratio: float) -> None:
        super().__init__()
        self.ratio = ratio
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(self.linear(x), self.ratio, self.training)


def test_label_smoothing_that_ends_at_zero_leaves_out_infinite_logits() -> None:
    def loss(self: Calls, x: Tensor, smoothing: float) -> Tensor:
        logits = self.fc(x) + torch.tensor([0.0, 0.0, 0.0, -math.inf])
        return F.cross_entropy(logits, torch.arange(3), label_smoothing=smoothing)

    model = ORTModule(Calls(loss), QUIET)
    losses = [model(torch.ones(3, 4), smoothing).item() for smoothing in (0.3, 0.2, 0.1, 0.0)]
    assert losses[:3] == [math.inf] * 3 and math.isfinite(losses[3])
