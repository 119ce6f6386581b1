"""ORTMODULE_RNG=torch: dropout draws eager's numbers in eager's order."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ortmodule_py import ORTModule, last_run_report
from tests.difficult_model import DifficultModel, batch
from tests.semantics import QUIET


@pytest.mark.slow
def test_dropout_is_eagers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_RNG", "torch")
    torch.manual_seed(0)
    eager = DifficultModel(dropout=0.1)
    ours = ORTModule(copy.deepcopy(eager))
    tokens, targets = batch(4)
    for _ in range(2):
        losses = []
        for module in (eager, ours):
            torch.manual_seed(5)
            loss, _ = module(tokens, targets)
            loss.backward()
            losses.append(loss.detach())
        torch.testing.assert_close(losses[0], losses[1], rtol=1e-6, atol=1e-6)
    for name, p in eager.named_parameters():
        grad = ours.module.get_parameter(name).grad
        torch.testing.assert_close(grad, p.grad, rtol=1e-4, atol=1e-5, msg=name)


class DropsPermuted(torch.nn.Module):
    """Sums of rows are laid out by our kernels; eager keeps the order of the operand's dims."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scaled = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
        changed = scaled * 1.5
        changed.neg_()
        return torch.nn.functional.dropout(changed, 0.5)


@pytest.mark.parametrize("shape", [(5, 7, 1), (5, 7, 3)])
def test_draws_follow_the_order_of_memory(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]
) -> None:
    monkeypatch.setenv("ORTMODULE_RNG", "torch")
    x = torch.randn(shape).transpose(0, 1)
    results = []
    for runner in (ORTModule(DropsPermuted()), DropsPermuted()):
        torch.manual_seed(3)
        results.append(runner(x))
    torch.testing.assert_close(*results)
    assert results[0].stride() == results[1].stride()


class DropsAPart(torch.nn.Module):
    """A view with gaps of a tensor that is filled, so that nothing computes its memory order."""

    def forward(self, x: Tensor) -> Tensor:
        filled = x * 1.5
        filled.fill_(0.5)
        return F.dropout(filled[:, -1], 0.3, self.training)


@pytest.mark.parametrize(
    ("order", "batch"),
    [((0, 1, 2, 3), 4), ((0, 1, 3, 2), 1), ((3, 1, 2, 0), 1), ((3, 2, 1, 0), 4)],
)
def test_draws_follow_the_order_of_memory_with_gaps(
    order: tuple[int, ...], batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORTMODULE_RNG", "torch")
    module = DropsAPart()
    model = ORTModule(copy.deepcopy(module))
    sizes = [batch, 2, 5, 6]
    x = torch.randn([sizes[d] for d in order]).permute([order.index(d) for d in range(4)])
    results = []
    for runner in (module, model):
        torch.manual_seed(3)
        results.append(runner(x))
    assert torch.equal(*results)


class DropsExpanded(torch.nn.Module):
    """Dimensions of stride 0 beside those of a tensor that is computed."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = F.dropout(x, 0.5, self.training)
        return (
            F.dropout(y.expand(2, -1, -1, -1), 0.3, self.training),
            F.dropout(y[:, None].expand(-1, 3, -1, -1), 0.3, self.training),
            F.dropout(y[..., None, :1].expand(-1, -1, 2, 5), 0.3, self.training),
        )


@pytest.mark.parametrize(
    ("order", "batch"), [((0, 1, 2), 4), ((0, 2, 1), 1), ((2, 1, 0), 1), ((1, 0, 2), 4)]
)
def test_draws_follow_the_order_of_memory_where_elements_share_it(
    order: tuple[int, ...], batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORTMODULE_RNG", "torch")
    module = DropsExpanded()
    model = ORTModule(copy.deepcopy(module))
    sizes = [batch, 5, 6]
    x = torch.randn([sizes[d] for d in order]).permute([order.index(d) for d in range(3)])
    results = []
    for runner in (module, model):
        torch.manual_seed(3)
        results.append(runner(x))
    for theirs, ours in zip(*results, strict=True):
        assert torch.equal(ours, theirs)
        large = [
            d for d, size in enumerate(ours.shape) if size > 1
        ]  # others have strides of any kind
        assert [ours.stride(d) for d in large] == [theirs.stride(d) for d in large]


def test_a_wrong_name_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_RNG", "numpy")
    with pytest.raises(ValueError, match="ORTMODULE_RNG"):
        ORTModule(torch.nn.Linear(2, 2))


class DropsChangedInPlace(torch.nn.Module):
    """In place the tensor stays as it is laid out; the operator that gives a new one goes by rows."""

    def __init__(self, change: str) -> None:
        super().__init__()
        self.change = change

    def forward(self, x: Tensor) -> Tensor:
        y, late = x * 2, x > 1
        index = torch.zeros(x.shape[0], x.shape[1], 1, dtype=torch.int64)
        match self.change:
            case "masked_fill_":
                y.masked_fill_(late, 0.5)
            case "masked_scatter_":
                y.masked_scatter_(late, x.flatten())
            case "scatter_":
                y.scatter_(2, index, 0.5)
            case "scatter_add_":
                y.scatter_add_(2, index, x[..., 1:2])
            case "index_fill_":
                y.index_fill_(1, index.flatten(), 0.5)
            case "cumsum_":
                y.cumsum_(2)
            case "index_put_":
                y[:, index.flatten()[:1]] = 0.5
        return torch.nn.functional.dropout(y, 0.5)


@pytest.mark.parametrize(
    ("change", "order"),
    [
        ("masked_fill_", (1, 0, 2)),
        ("masked_scatter_", (2, 1, 0)),
        ("scatter_", (1, 0, 2)),
        ("scatter_add_", (2, 1, 0)),
        ("index_fill_", (1, 0, 2)),
        ("cumsum_", (2, 1, 0)),
        ("index_put_", (1, 0, 2)),
    ],
)
def test_draws_follow_the_order_of_memory_after_a_change_in_place(
    monkeypatch: pytest.MonkeyPatch, change: str, order: tuple[int, ...]
) -> None:
    monkeypatch.setenv("ORTMODULE_RNG", "torch")
    x = torch.randn(5, 7, 6).permute(order)
    results = []
    for runner in (ORTModule(DropsChangedInPlace(change)), DropsChangedInPlace(change)):
        torch.manual_seed(3)
        results.append(runner(x))
    torch.testing.assert_close(*results)
    assert results[0].stride() == results[1].stride()


def _new(x: Tensor, dims: int | None = None) -> Tensor:
    """A new tensor of the shape of x, or of one number per sample, as drop path in timm makes it."""
    return x.new_empty(x.shape if dims is None else (x.shape[0],) + (1,) * (x.ndim - 1))


NOISE = {
    "drop path": lambda x: x * _new(x, 1).bernoulli_(0.7).div_(0.7),
    "uniform": lambda x: x * _new(x).uniform_(0.5, 2.0),
    "normal": lambda x: x + x.new_zeros(x.shape).normal_(0.5, 2.0),
    "exponential": lambda x: x - torch.empty_like(x).exponential_().log(),
    "bernoulli of a tensor": lambda x: x * torch.bernoulli(x.new_full(x.shape, 0.7)),
    "integers": lambda x: x * _new(x).random_(1, 5) + _new(x).random_(3),
    "log normal": lambda x: x * _new(x).log_normal_(0.0, 0.5) + _new(x).cauchy_(),
    "geometric": lambda x: x * _new(x).geometric_(0.4),
    "mask": lambda x: x * (torch.zeros_like(x).bernoulli_(0.3) == 0),
    "randint_like": lambda x: x * torch.randint_like(x, 1, 5),
    "rand": lambda x: x + torch.rand(x.shape, device=x.device),
    "randn_like": lambda x: x + torch.randn_like(x),
}


@pytest.mark.parametrize(
    ("noise", "rng"),
    # The engine's other draws are in test_draws.py.
    [
        *((noise, "torch") for noise in NOISE),
        ("bernoulli of a tensor", "engine"),
        ("mask", "engine"),
    ],
)
def test_noise_of_the_shape_of_an_activation(
    noise: str, rng: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if rng == "torch":
        monkeypatch.setenv("ORTMODULE_RNG", rng)
    make = NOISE[noise]

    class Noisy(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = torch.nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = make(self.fc(x))
            return result

    torch._dynamo.reset()
    eager = Noisy()
    ours = ORTModule(copy.deepcopy(eager), QUIET)
    results = []
    for module in (eager, ours):
        torch.manual_seed(3)
        y = module(torch.ones(64, 4))
        y.sum().backward()
        results.append(y.detach())
    report = last_run_report(ours)
    assert report["compiled"] and report["captures"] == 1, report["eager_pieces"]
    spread = results[1].std(0)
    assert (spread > 0).all() and spread.isfinite().all()
    if rng == "torch":
        torch.testing.assert_close(results[1], results[0])
        torch.testing.assert_close(ours.module.fc.weight.grad, eager.fc.weight.grad)


@pytest.mark.parametrize(
    ("name", "rng"),
    [
        *(
            (name, "torch")
            for name in ("uniform_", "normal_", "exponential_", "bernoulli_", "random_")
        ),
        ("uniform_", "engine"),
        ("bernoulli_", "engine"),
    ],
)
def test_a_draw_over_a_value_with_a_gradient(
    name: str, rng: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Autograd has zeros for what it overwrites."""
    if rng == "torch":
        monkeypatch.setenv("ORTMODULE_RNG", rng)

    class Overwritten(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.other = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = self.fc(x)
            arguments = (2, 5) if name == "random_" else ()
            getattr(y, name)(*arguments)
            return y, self.other(x) * y

    torch._dynamo.reset()
    eager = Overwritten()
    ours = ORTModule(copy.deepcopy(eager), QUIET)
    results = []
    for module in (eager, ours):
        torch.manual_seed(3)
        y, product = module(torch.ones(6, 4))
        assert y.requires_grad
        (y.sum() + product.sum()).backward()
        results.append([y.detach(), product.detach()])
    assert last_run_report(ours)["compiled"], last_run_report(ours)["eager_pieces"]
    assert torch.equal(ours.module.fc.weight.grad, torch.zeros(4, 4))
    assert torch.equal(eager.fc.weight.grad, torch.zeros(4, 4))
    if rng == "torch":
        torch.testing.assert_close(results[1], results[0])


class NoiseInEveryOther(torch.nn.Module):
    """Eager draws normal numbers one by one into a tensor with gaps, 16 at a time into others."""

    def forward(self, x: Tensor) -> Tensor:
        return x + x.detach().normal_()


@pytest.mark.parametrize("step", [1, 2])
def test_normal_numbers_in_place_are_eagers(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_RNG", "torch")
    results = []
    for runner in (NoiseInEveryOther(), ORTModule(NoiseInEveryOther())):
        torch.manual_seed(3)
        results.append(runner(torch.ones(4, 16)[:, ::step]))
    assert torch.equal(*results)
