"""Attention that a model writes as products and a softmax, as one operator in training."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ortmodule_py import ORTModule, last_run_report
from ortmodule_py.base import fused_attention
from ortmodule_py.report.plan_table import training_piece
from tests.devices.emulated import emulated

WIDTH, HEADS = 32, 4


class Attention(nn.Module):
    def __init__(self, mask: str = "none", dropout: float = 0.0) -> None:
        super().__init__()
        self.mask, self.dropout = mask, dropout
        self.least = torch.finfo(torch.float32).min
        self.project = nn.Linear(WIDTH, 3 * WIDTH)
        self.bias = nn.Parameter(torch.randn(HEADS, 1, 1))

    def heads(self, x: Tensor) -> Tensor:
        n, length = x.shape[:2]
        if self.mask == "flat":  # as fairseq's and BART's
            return x.reshape(n, length, HEADS, -1).transpose(1, 2).reshape(n * HEADS, length, -1)
        return x.view(n, length, HEADS, -1).transpose(1, 2)

    def hide(self, scores: Tensor, x: Tensor) -> Tensor:
        length = x.shape[1]
        late = torch.arange(length) >= length - 2
        if self.mask == "causal":
            return scores.masked_fill(torch.ones(length, length).triu(1).bool(), float("-inf"))
        if self.mask == "padding":
            return scores + late.float() * self.least
        if self.mask == "all hidden":
            return scores + torch.ones_like(late).float() * self.least
        return scores + self.bias if self.mask == "trained" else scores

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(self.heads, self.project(x).chunk(3, -1))
        scores = self.hide(torch.matmul(q, k.transpose(-2, -1)) / (WIDTH / HEADS) ** 0.5, x)
        p = F.softmax(scores, -1, dtype=torch.float32).to(v.dtype)
        p = F.dropout(p, self.dropout, self.training)
        return torch.matmul(p, v).square().mean()


def gradients(model: nn.Module, x: Tensor, narrow: bool = False) -> dict[str, Tensor]:
    torch.manual_seed(5)
    model.zero_grad(set_to_none=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=narrow):
        loss = model(x)
    loss.backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def wrapped(
    module: nn.Module, monkeypatch: pytest.MonkeyPatch, on: str = "1", emulate: bool = False
) -> ORTModule:
    monkeypatch.setenv("ORTMODULE_FUSED_ATTENTION", on)
    monkeypatch.setenv("ORTMODULE_CUDA_EMULATION", str(int(emulate)))
    return ORTModule(copy.deepcopy(module))


def operators(model: ORTModule) -> int:
    text: str = training_piece(model._compiler).text("lowered")
    return text.count("= ScaledDotProductAttentionGrad<") + text.count("_for_cpu_backward.default")


def assert_close(found: dict[str, Tensor], exact: dict[str, Tensor], least: float) -> None:
    assert found.keys() == exact.keys()
    for name, gradient in exact.items():
        assert (found[name] - gradient).norm() <= least * gradient.norm() + 1e-9, name


@pytest.mark.parametrize("emulate", [False, pytest.param(True, marks=emulated)])
@pytest.mark.parametrize(
    ("mask", "narrow"),
    [("none", True), ("causal", False), ("padding", True), ("all hidden", False), ("flat", False)],
)
def test_gradients_are_those_of_the_parts(
    mask: str, narrow: bool, emulate: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(1)
    module = Attention(mask)
    model = wrapped(module, monkeypatch, emulate=emulate)
    exact_module = copy.deepcopy(module).double()
    all_hidden_by_torch = emulate and mask == "all hidden"
    if all_hidden_by_torch:  # no number is below this
        exact_module.least = -10000.0
    least = 2e-2 if narrow else 1e-3 if all_hidden_by_torch else 1e-5
    for length in (9, 21):
        x = torch.randn(3, length, WIDTH)
        exact = gradients(exact_module, x.double())
        assert_close(gradients(model, x, narrow), exact, least)
    assert operators(model) == 1


def test_the_same_numbers_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    module = Attention("causal", dropout=0.3)
    x = torch.randn(2, 12, WIDTH)
    parts, fused = (wrapped(module, monkeypatch, on) for on in ("0", "1"))
    assert_close(gradients(fused, x), gradients(parts, x), 1e-5)
    assert (operators(parts), operators(fused)) == (0, 1)


def test_no_scores_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    module = Attention("causal", dropout=0.1)
    saved = []
    for on in ("0", "1"):
        model = wrapped(module, monkeypatch, on)
        gradients(model, torch.randn(2, 128, WIDTH))
        saved.append(last_run_report(model)["planned_peak_bytes"])
    scores = 2 * HEADS * 128 * 128 * 4
    assert saved[0] - saved[1] > scores


def test_a_mask_that_trains_keeps_the_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    module = Attention("trained")
    x = torch.randn(2, 12, WIDTH)
    model = wrapped(module, monkeypatch)
    assert_close(gradients(model, x), gradients(module, x), 1e-5)
    assert operators(model) == 0
    rejections: Any = training_piece(model._compiler).text("passes")
    assert "the mask needs a gradient" in rejections


def test_what_auto_means(monkeypatch: pytest.MonkeyPatch) -> None:
    def form(setting: str, **facts: bool) -> str:
        known = {"on_gpu": False, "emulated": False, "configured": False}
        return fused_attention.attention_form(setting, **(known | facts))

    checked: set[str] = set()
    monkeypatch.setattr(fused_attention, "is_checked", checked.__contains__)
    assert form("auto") == form("auto", on_gpu=True) == form("0", on_gpu=True) == "spelled"
    assert (form("1"), form("1", on_gpu=True)) == ("own", "torch_cuda")
    assert form("1", emulated=True) == "torch_on_cpu"
    checked.add(fused_attention.FEATURE)
    assert (form("auto"), form("auto", on_gpu=True)) == ("spelled", "torch_cuda")
    assert form("auto", on_gpu=True, configured=True) == "spelled"
    torch.use_deterministic_algorithms(True)
    try:
        assert (form("1", on_gpu=True), form("1")) == ("spelled", "own")
    finally:
        torch.use_deterministic_algorithms(False)
