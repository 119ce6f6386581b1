"""Layers that repeat are traced once; what differs in one of them is seen."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ortmodule_py import ORTModule, last_run_report
from ortmodule_py.trace import region_reuse
from tests.semantics import QUIET

LAYERS = 6


class Block(nn.Module):
    """Two products, a norm and a dropout; what varies is an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.wide, self.narrow = nn.Linear(8, 16), nn.Linear(16, 8)
        self.drop = nn.Dropout(0.0)
        self.batches = nn.BatchNorm1d(8)
        self.scale = 1.0
        self.mode = "plain"

    def inner(self, x: Tensor) -> Tensor:
        """The branch beside the residual."""
        h = self.wide(self.norm(x)).tanh() * self.scale
        return self.drop(self.narrow(h.clamp(-2.0, 2.0)))

    def forward(self, x: Tensor) -> Tensor:
        if self.mode == "checkpoint":
            return x + checkpoint(self.inner, x, use_reentrant=False)
        if self.mode == "in place":
            h = self.inner(x)[:, 1:]
            h *= 2.0
            h += x[:, 1:]
            return torch.cat([x[:, :1], h], 1)
        if self.mode == "no gradient":
            with torch.no_grad():
                weight = self.inner(x).sigmoid()
            return x + self.inner(x) * weight
        if self.mode == "function":
            return x + Doubles.apply(self.inner(x))
        if self.mode == "buffers":
            return x + self.batches(self.inner(x).transpose(1, 2)).transpose(1, 2)
        return x + self.inner(x)


class Doubles(torch.autograd.Function):
    """Its gradient is not that of its forward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Save the input."""
        ctx.save_for_backward(x)
        return 2 * x

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Tensor:
        """Three times what it should be."""
        (x,) = ctx.saved_tensors
        return 6 * grads[0] * x.cos()


def stack(mode: str = "plain") -> nn.Sequential:
    """Equal blocks."""
    torch.manual_seed(0)
    blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
    for block in blocks:
        block.mode = mode
    return blocks


def results(module: nn.Module, x: Tensor) -> list[Tensor | None]:
    """Output and gradients."""
    module.zero_grad()
    x = x.clone().requires_grad_()
    y = module(x)
    y.square().sum().backward()
    grads = [x.grad, *(p.grad for p in module.parameters())]
    return [y.detach(), *grads, *(b.clone() for b in module.buffers())]


def assert_same(ours: list[Tensor | None], eager: list[Tensor | None]) -> None:
    """Equal but for rounding; None where eager has None."""
    for a, b in zip(ours, eager, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Calls copied by each region."""
    counts: list[int] = []
    reuse = region_reuse.RegionReuse.reuse

    def counting(self: Any, *args: Any) -> Any:
        values = reuse(self, *args)
        if values is not None:
            counts.append(len(values))
        return values

    monkeypatch.setattr(region_reuse.RegionReuse, "reuse", counting)
    yield counts


MODES = ["plain", "checkpoint", "in place", "no gradient", "function", "buffers"]


@pytest.mark.parametrize("mode", MODES)
def test_equal_layers_are_copied(
    mode: str, copied: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With eager's results; the graph is that of layers which are all traced."""
    module, x = stack(mode).double(), torch.randn(3, 5, 8, dtype=torch.float64)
    monkeypatch.setenv("ORTMODULE_DUMP", str(tmp_path / "copied"))
    model = ORTModule(copy.deepcopy(module), QUIET)
    assert_same(results(model, x), results(module, x))
    assert last_run_report(model)["compiled"]
    calls = 4 if mode == "checkpoint" else 8
    assert sum(copied) >= calls * (LAYERS - 2)
    assert len(copied) < LAYERS - 1, "layers are copied in twos and fours"
    # A view that leaves a copied region has no base, so that a later change of it writes no base. What is
    # plain is in the other modes, too.
    if mode in ("in place", "plain"):
        return
    copied.clear()
    monkeypatch.setattr(region_reuse, "find_repeats", lambda _: [])
    monkeypatch.setenv("ORTMODULE_DUMP", str(tmp_path / "traced"))
    results(ORTModule(stack(mode).double(), QUIET), x)
    assert not copied
    texts = [
        {file.name: file.read_text() for file in sorted((tmp_path / name).iterdir())}
        for name in ("copied", "traced")
    ]
    assert texts[0] and texts[0] == texts[1]


def test_layers_that_share_their_buffers() -> None:
    """Each batch changes the averages as often as there are layers."""
    module, x = stack("buffers").double(), torch.randn(3, 5, 8, dtype=torch.float64)
    for block in module:
        block.batches = module[0].batches
    model = ORTModule(copy.deepcopy(module), QUIET)
    for _ in range(2):
        assert_same(results(model, x), results(module, x))
    assert last_run_report(model)["compiled"]


def _freeze(block: Block) -> None:
    block.wide.weight.requires_grad_(False)


CHANGES: dict[str, Callable[[Block], Any]] = {
    "a number": lambda block: setattr(block, "scale", 0.5),
    "its path": lambda block: setattr(block, "mode", "no gradient"),
    "p": lambda block: setattr(block.drop, "p", 1.0),
    "requires_grad": _freeze,
    "a hook": lambda block: block.narrow.register_forward_hook(lambda *a: a[2] * 3),
    "a backward hook": lambda block: block.narrow.register_full_backward_hook(
        lambda _, grads, __: (grads[0] * 3,)
    ),
    "a layer": lambda block: setattr(block, "narrow", nn.Linear(16, 8, bias=False)),
}


@pytest.mark.parametrize(
    ("change", "when"),
    [*((change, "before") for change in CHANGES), ("its path", "after"), ("a layer", "after")],
)
def test_a_change_of_one_layer_is_seen(change: str, when: str, copied: list[int]) -> None:
    module, x = stack(), torch.randn(3, 5, 8)
    model = ORTModule(module, QUIET)
    if when == "after":
        results(model, x)
    torch.manual_seed(1)
    CHANGES[change](module[3])
    eager = copy.deepcopy(module)
    assert_same(results(model, x), results(eager, x))
    assert copied or "hook" in change, "a hook may break the graph"


def test_layers_with_one_weight_are_no_copies_of_others() -> None:
    module, x = stack(), torch.randn(3, 5, 8)
    module[2].norm = module[3].norm
    module[4].wide.weight = module[5].wide.weight
    model = ORTModule(copy.deepcopy(module), QUIET)
    assert_same(results(model, x), results(module, x))


def test_draws_of_each_layer_are_its_own(copied: list[int]) -> None:
    class Draws(nn.Module):
        """Dropout of ones, returned."""

        def __init__(self) -> None:
            super().__init__()
            self.blocks = stack()
            for block in self.blocks:
                block.drop.p = 0.5

        def forward(self, x: Tensor) -> list[Tensor]:
            seen = []
            for block in self.blocks:
                x = block(x)
                seen.append(block.drop(torch.ones_like(x)))
            return seen

    masks = ORTModule(Draws(), QUIET)(torch.randn(3, 5, 8))
    assert copied
    patterns = {tuple(mask.flatten().tolist()) for mask in masks}
    assert len(patterns) == LAYERS


class Heads(nn.Module):
    """Two projections that are changed in place and split into heads, as AdaLoRA does it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for q, v in zip(self.layers[:2], self.layers[2:], strict=True):
            parts = []
            for layer in (q, v):
                y = layer(x)
                y += (x @ layer.weight.T).tanh() * 2 / (layer.weight.sum() + 9)
                parts.append(y.view(*x.shape[:2], 2, 3).transpose(1, 2))
            x = (parts[0] * parts[1]).transpose(1, 2).flatten(2)
        return x


def test_views_of_what_was_changed_in_place() -> None:
    torch._dynamo.reset()
    model, x = ORTModule(Heads(), QUIET), torch.randn(2, 5, 6)
    torch.testing.assert_close(model(x), model.module(x), rtol=1e-4, atol=1e-5)
    report = last_run_report(model)
    assert report["compiled"], report["eager_pieces"]


class Steps(nn.Module):
    """A loop over time, whose rounds read one step each."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cell = nn.LSTMCell(6, 6)
        self.decay = nn.Parameter(torch.rand(6))
        self.mode = mode

    def forward(self, x: Tensor) -> Tensor:
        h, c = x.new_zeros(x.shape[0], 6), x.new_zeros(x.shape[0], 6)
        seen = []
        rates = torch.sigmoid(x)
        y = x * 1.0
        parts = x.unbind(1)
        for t in range(x.shape[1]):
            if self.mode == "cell":
                h, c = self.cell(x[:, t], (h, c))
            elif self.mode == "unbound":
                h = (h * rates[:, t] + parts[t] * self.decay.exp()).tanh() * self.decay
            elif self.mode == "selected":
                h = (h * rates.select(1, t) + x.select(-2, t) * self.decay.exp()).tanh()
            elif self.mode == "last":
                h = (h * rates[:, t] + x[:, -1 - t] * self.decay.exp()).tanh()
            elif self.mode == "strided":  # by places in the storage
                wide = torch.as_strided(rates[:, t], (2, 4), (1, 1), t)
                h = (h * rates[:, t] + x[:, t] * self.decay.exp() + wide.sum() * 2.0).tanh()
            else:  # the steps are changed
                h = (h * rates[:, t] + (y[:, t] + self.decay.exp())).tanh() * self.decay
                y[:, t] += 2.0
            seen.append(h)
        return torch.stack(seen, 1) + y


@pytest.mark.parametrize("mode", ["cell", "unbound", "selected", "last", "changed", "strided"])
def test_steps_of_a_loop_are_copied(mode: str, copied: list[int]) -> None:
    """Though each reads another element of its input."""
    module, x = Steps(mode).double(), torch.randn(3, 9, 6, dtype=torch.float64)
    model = ORTModule(copy.deepcopy(module), QUIET)
    assert_same(results(model, x), results(module, x))
    assert last_run_report(model)["compiled"] or mode == "strided"
    if mode in ("cell", "unbound", "selected"):
        calls = {"cell": 4, "unbound": 7, "selected": 7}[mode]
        assert sum(copied) >= calls * (x.shape[1] - 3)
        assert len(copied) <= 5, "rounds are copied in twos and fours"
