"""Gradients that leave before the end of backward, and what is read of them later."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn

from ortmodule_py import ORTModule, last_run_report

WIDTH = 1024


class Residual(nn.Module):
    """The gradient of `pos` is that of the sum, which the first layer's gradient reads later."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in "123")
        self.pos = nn.Parameter(torch.randn(WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x) + self.pos
        return self.third(self.second(h.tanh()).tanh()).square().mean()


def test_what_was_handed_over_is_not_read_again() -> None:
    torch.manual_seed(0)
    eager = Residual()
    ours = ORTModule(copy.deepcopy(eager))
    seen: list[Tensor] = []

    def change(p: Tensor) -> None:
        assert p.grad is not None
        seen.append(p.grad.clone())
        p.grad.zero_()  # as an optimizer that steps in backward

    ours.module.pos.register_post_accumulate_grad_hook(change)
    x = torch.randn(WIDTH, WIDTH)
    for _ in range(2):
        eager(x).backward()
        ours(x).backward()
    assert last_run_report(ours)["compiled"]
    torch.testing.assert_close(seen[0] + seen[1], eager.pos.grad)
    for name, p in eager.named_parameters():
        if name != "pos":
            torch.testing.assert_close(ours.module.get_parameter(name).grad, p.grad, msg=name)


def test_threads_of_different_shapes() -> None:
    """Each call runs with its own plan."""
    module = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    model = ORTModule(module)
    sizes = (2, 3, 5, 300)

    def run(size: int) -> list[str]:
        wrong = []
        x = torch.randn(size, 16)
        with torch.no_grad():
            want = module(x)
            for _ in range(500):
                got = model(x)
                if got.shape != want.shape or not torch.allclose(got, want, atol=1e-5):
                    wrong.append(f"{tuple(want.shape)} but {tuple(got.shape)}")
        return wrong

    with torch.no_grad():
        for size in sizes:
            model(torch.randn(size, 16))
    with ThreadPoolExecutor(len(sizes)) as pool:
        assert [text for wrong in pool.map(run, sizes) for text in wrong] == []


def _deep() -> nn.Module:
    return nn.Sequential(*(m for _ in range(6) for m in (nn.Linear(WIDTH, WIDTH), nn.Tanh())))


def test_an_optimizer_may_step_in_backward() -> None:
    """As in torch's tutorial on fusing it into backward: what changes is not read any more."""
    torch.manual_seed(0)
    eager = _deep()
    ours = ORTModule(copy.deepcopy(eager))
    x = torch.randn(64, WIDTH)

    def step(p: Tensor) -> None:
        assert p.grad is not None
        p.data.add_(p.grad, alpha=-100.0)
        p.grad = None

    for model in (eager, ours):
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(step)
        model(x).square().mean().backward()
    facts = ours._compiler.pieces[0].compiled.facts()
    assert facts["ranges"] > 4
    for (name, p), q in zip(eager.named_parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(q, p, msg=name)


@pytest.mark.slow
def test_a_gradient_of_the_last_layer_alone_leaves_nothing_behind() -> None:
    torch.manual_seed(0)
    eager = _deep()
    ours = ORTModule(copy.deepcopy(eager))
    x = torch.randn(64, WIDTH)
    for _ in range(3):
        grads = []
        for model in (eager, ours.module):
            run = eager if model is eager else ours
            loss = run(x).square().mean()
            last = torch.autograd.grad(loss, model[10].weight, retain_graph=True)
            model.zero_grad()
            loss.backward()
            grads.append([*last, *(p.grad for p in model.parameters())])
        for a, b in zip(*grads, strict=True):
            torch.testing.assert_close(a, b)
    report = last_run_report(ours)
    assert report["plans"] == 1
    # The first pass's gradient is counted as the caller's; what it left behind is freed.
    assert report["measured_peak_bytes"] <= report["planned_peak_bytes"]


def test_a_backward_that_failed_does_not_run_again() -> None:
    model = ORTModule(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)))
    x = torch.randn(4, 8)
    loss = model(x).square().sum()
    state = {"fail": True}

    def fail(p: Tensor) -> None:
        if state["fail"]:
            raise ValueError("interrupted")

    model.module[2].weight.register_hook(fail)
    with pytest.raises(ValueError, match="interrupted"):
        loss.backward()
    state["fail"] = False
    with pytest.raises(RuntimeError, match="a second time"):
        loss.backward()


class _Pair(nn.Module):
    """Two outputs that have no layer in common."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.first(x), self.second(x)


def test_a_hook_gets_a_tensor_where_no_gradient_comes() -> None:
    model = ORTModule(_Pair())
    seen: list[Tensor] = []
    model.module.second.weight.register_hook(lambda g: seen.append(g) or g.clamp(-1, 1))
    model(torch.ones(2, 4))[0].sum().backward()
    (zeros,) = seen
    assert not zeros.any()
    assert model.module.second.bias.grad is None
    assert model.module.first.weight.grad is not None


class _Heads(nn.Module):
    """A trunk with a head, and a part of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.head, self.other = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self.trunk(x).tanh()
        return self.head(hidden).exp(), hidden.sin(), self.other(x).tanh().exp()


def test_outputs_of_one_trunk_share_one_backward_pass() -> None:
    model = ORTModule(_Heads())
    first, second, other = model(torch.ones(2, 4))
    first.sum().backward(retain_graph=True)
    second.sum().backward()
    for again in (first, second):
        with pytest.raises(RuntimeError, match=r"share saved activations share one backward pass"):
            again.sum().backward()
    other.sum().backward()
    assert all(p.grad is not None for p in model.module.parameters())


@pytest.mark.parametrize("level", ["0", "1"])
def test_outputs_that_share_nothing_have_passes_of_their_own(
    level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_LEVEL", level)
    eager = _Heads()
    model = ORTModule(copy.deepcopy(eager))
    x = torch.randn(3, 4)
    for first, last in ((0, 2), (2, 0)):
        for module in (eager, model):
            module.zero_grad()
            outputs = module(x)
            outputs[first].square().sum().backward()
            # A step on the weights of one part is none of the other's business.
            if first == 2:
                with torch.no_grad():
                    module.other.weight.mul_(0.5)
            outputs[last].square().sum().backward()
        for wanted, parameter in zip(eager.parameters(), model.module.parameters(), strict=True):
            torch.testing.assert_close(parameter.grad, wanted.grad)
        report = last_run_report(model)
        assert 0 < report["measured_peak_bytes"] <= report["planned_peak_bytes"]


def test_a_changed_weight_is_an_error_where_a_pass_reads_it() -> None:
    model = ORTModule(_Heads())
    first, _, other = model(torch.randn(3, 4))
    other.sum().backward()
    with torch.no_grad():
        model.module.head.weight.mul_(0.5)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        first.sum().backward()


def test_a_pass_in_the_midst_of_another_is_refused() -> None:
    # Wide enough for more than one range, so that a hook runs between two of them.
    model = ORTModule(nn.Sequential(*(nn.Linear(640, 640) for _ in range(5))))
    loss = model(torch.randn(2, 640)).square().sum()
    wanted = [
        g.clone() for g in torch.autograd.grad(loss, [*model.parameters()], retain_graph=True)
    ]
    state = {"again": True}

    def again(_: Tensor) -> None:
        if state.pop("again", False):
            torch.autograd.grad(loss, model.module[4].weight, retain_graph=True)

    model.module[4].bias.register_hook(again)
    with pytest.raises(RuntimeError, match="one backward pass at a time"):
        loss.backward(retain_graph=True)
    model.zero_grad()
    loss.backward()
    for parameter, gradient in zip(model.parameters(), wanted, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)
