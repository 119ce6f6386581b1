"""Operators that torch makes of others, where the parts say less than the whole."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._export.utils import _collect_all_valid_cia_ops
from torch.nn import functional as F

from ortmodule_py import _C, ORTModule, last_run_report
from ortmodule_py.trace.patched_kernels import preserved_composites
from tests.semantics import Calls, as_in_eager, assert_compiled


def test_cosine_similarity_of_short_vectors() -> None:
    """Below `eps` the norm has the value `eps`, but its gradient passes."""

    def forward(self: Any, x: Tensor) -> Tensor:
        y = self.fc(x)
        return F.cosine_similarity(y, y.tanh(), eps=0.9)[:, None] * y

    def step(model: Any) -> Tensor:
        x = torch.randn(6, 4) * torch.linspace(0.05, 4, 6)[:, None]
        assert (model.fc(x).norm(dim=1) < 0.9).any() and (model.fc(x).norm(dim=1) > 0.9).any()
        y: Tensor = model(x)
        y.sum().backward()
        return y

    assert_compiled(as_in_eager(Calls(forward), step))


DROPOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout1d": lambda y: F.dropout1d(y[0], 0.3),
    "dropout2d": lambda y: F.dropout2d(y, 0.3),
    "dropout2d in place": lambda y: F.dropout2d(y * 1, 0.3, inplace=True),
    "dropout3d": lambda y: F.dropout3d(y[None], 0.3),
    "alpha": lambda y: F.alpha_dropout(y, 0.3, training=True),
    "feature alpha": lambda y: F.feature_alpha_dropout(y, 0.3, training=True),
    "everything": lambda y: F.dropout2d(y, 1.0),
    "nothing": lambda y: F.dropout2d(y, 0.0),
    "evaluation": lambda y: F.alpha_dropout(y, 0.3, training=False),
}


class Images(nn.Module):
    def __init__(self, use: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.conv, self.use = nn.Conv2d(3, 5, 3), use

    def forward(self, x: Tensor) -> Tensor:
        return self.use(self.conv(x)).square().sum()


def _same_step(eager: nn.Module, x: Tensor) -> None:
    ours = ORTModule(copy.deepcopy(eager))
    losses = []
    for runner in (eager, ours):
        torch.manual_seed(3)
        losses.append(runner(x))
        losses[-1].backward()
    assert last_run_report(ours)["compiled"]
    torch.testing.assert_close(losses[1], losses[0])
    for (name, p), q in zip(eager.named_parameters(), ours.module.parameters(), strict=True):
        torch.testing.assert_close(q.grad, p.grad, msg=name, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", DROPOUTS)
def test_dropout_draws_eagers_numbers(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_RNG", "torch")
    _same_step(Images(DROPOUTS[kind]), torch.randn(4, 3, 6, 6))


def _diagonal(y: Tensor) -> Tensor:
    square = y[:, 0, :4, :4].reshape(16, 4) * 1
    return square.fill_diagonal_(0.5, wrap=True) + square[:4].clone().fill_diagonal_(0).sum()


DIAGONALS: dict[str, Callable[[Tensor], Tensor]] = {
    "wrapped": _diagonal,
    "wide": lambda y: y[0, :2].flatten(1).clone().fill_diagonal_(1.5),
    "tall": lambda y: y[0].flatten(1).t().clone().fill_diagonal_(-2.0),
    "cube": lambda y: y[:4, :4, :4, :4].clone().fill_diagonal_(3.0),
    "constant": lambda y: y[0, 0] * torch.ones(4, 4).fill_diagonal_(0.0),
}


@pytest.mark.parametrize("kind", DIAGONALS)
def test_the_gradient_of_a_filled_diagonal(kind: str) -> None:
    _same_step(Images(DIAGONALS[kind]), torch.randn(4, 3, 6, 6))


def test_rrelu_that_draws_nothing() -> None:
    """In evaluation it is a leaky ReLU, changed in place or not."""
    use = lambda y: F.rrelu(y, training=False) + F.rrelu_(y * 1, 0.1, 0.2)  # noqa: E731
    _same_step(Images(use), torch.randn(4, 3, 6, 6))


@pytest.mark.parametrize("target", [[2, 0, -1, 0], [1, -1, 3, 3], [-1, 0, 0, 0], [3, 2, 1, 0]])
def test_targets_behind_the_end_do_not_count(target: list[int]) -> None:
    labels = torch.tensor([target])

    def loss(y: Tensor) -> Tensor:
        return F.multilabel_margin_loss(y[0, 0, :1], labels)

    _same_step(Images(loss), torch.randn(1, 3, 6, 6))


def test_calls_that_differ_in_which_operand_is_repeated() -> None:
    """Operators without a rule share the trace of their gradient where nothing tells them apart."""

    def forward(self: Any, x: Tensor) -> Tensor:
        y, z = self.fc(x), x.sigmoid() * self.fc.bias
        return torch.lerp(y, z, y) + 2 * torch.lerp(y, z, z).square()

    def step(model: Any) -> Tensor:
        out: Tensor = model(torch.randn(3, 4))
        out.sum().backward()
        return out

    assert_compiled(as_in_eager(Calls(forward), step))


def test_weights_per_sample_of_a_frozen_table() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        places = torch.arange(x.numel()).reshape(x.shape) % 10
        result: Tensor = self.table(places, per_sample_weights=self.fc(x))
        return result

    def step(model: Any) -> Tensor:
        result: Tensor = model(torch.linspace(-1, 1, 12).reshape(3, 4))
        result.square().sum().backward()
        return result

    table = nn.EmbeddingBag(10, 4, mode="sum").requires_grad_(False)
    assert_compiled(as_in_eager(Calls(forward, table=table), step))


@pytest.mark.parametrize("sizes", [1, (2, 1, 2)])
def test_adaptive_pools_of_channels_last_videos(sizes: Any) -> None:
    """Video transformers keep channels last; eager reads them by strides."""

    def forward(self: Any, x: Tensor) -> Tensor:
        y: Tensor = F.adaptive_avg_pool3d(self.fc(x).permute(0, 4, 1, 2, 3), sizes).flatten(1)
        return y.tanh()

    def step(model: Any) -> list[Tensor]:
        results = [model(torch.randn(rows, 2, 3, 5, 4)) for rows in (2, 3, 4)]
        sum(y.square().sum() for y in results).backward()
        return results

    assert_compiled(as_in_eager(Calls(forward), step))


def test_the_gradient_of_a_weight_norm_of_channels_last_convolutions() -> None:
    """Its kernel reads the gradient of the weight in rows; the convolution leaves pixels."""

    def forward(self: Any, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x).relu().mean((2, 3))
        return y

    def step(model: Any) -> Tensor:
        torch.manual_seed(0)
        result: Tensor = model(torch.randn(8, 3, 8, 8))
        result.square().sum().backward()
        return result

    conv = nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 8, 3, padding=1))
    assert_compiled(as_in_eager(Calls(forward, conv=conv), step))


def test_the_composites_that_stay_whole_are_those_of_torch() -> None:
    """That are known to the engine; torch lists them by making an object of each."""
    known = _C.GraphBuilder().has_rule
    expected = [
        op
        for op in sorted(_collect_all_valid_cia_ops(), key=str)
        if op is not torch.ops.aten.type_as.default
        and (op is torch.ops.aten.scaled_dot_product_attention.default or known(str(op)))
    ]
    assert len(expected) > 20
    assert preserved_composites(known) == expected
