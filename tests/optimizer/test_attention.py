"""Attention without dropout is an op like others: recomputed, and without a seed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from ortmodule_py import ORTModule, last_run_report


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.up, self.down = nn.Linear(32, 128), nn.Linear(128, 32)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 4, 8).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(x)))


def _trained(layers: int = 4) -> tuple[ORTModule, list[Tensor]]:
    torch.manual_seed(0)
    model = ORTModule(nn.Sequential(*(_Block() for _ in range(layers))))
    model(torch.randn(2, 64, 32)).square().mean().backward()
    return model, [p.grad for p in model.parameters() if p.grad is not None]


def test_a_level_recomputes_it_bit_by_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_LOG_LEVEL", "ERROR")
    kept, wanted = _trained()
    for level in ("1", "2"):
        monkeypatch.setenv("ORTMODULE_MEMORY_OPT_LEVEL", level)
        model, gradients = _trained()
        report = last_run_report(model)
        assert report["nodes_aten_fallback"] == 0
        assert report["measured_peak_bytes"] == report["planned_peak_bytes"]
        assert report["planned_peak_bytes"] < last_run_report(kept)["planned_peak_bytes"]
        assert all(torch.equal(a, b) for a, b in zip(gradients, wanted, strict=True))


def test_without_dropout_no_generator_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_LOG_LEVEL", "ERROR")
    model, _ = _trained(layers=1)
    x = torch.randn(2, 64, 32)
    state = torch.get_rng_state()
    model(x).sum().backward()
    assert torch.equal(torch.get_rng_state(), state)


def test_its_cluster_id_is_in_the_table(capfd: pytest.CaptureFixture[str]) -> None:
    _trained()
    assert "ScaledDotProductAttention+:1:-1" in capfd.readouterr().err


class _Heads(nn.Module):
    """Gives out what attention gives, so that backward has y, but not the statistics of its rows."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(32, 96)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 4, 8).permute(2, 0, 3, 1, 4)
        y: Tensor = nn.functional.scaled_dot_product_attention(q, k, v)
        return y


def test_its_statistics_alone_are_recomputed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_LOG_LEVEL", "ERROR")
    found = []
    for config in ("", "ScaledDotProductAttention+:1:-1"):
        monkeypatch.setenv("ORTMODULE_MEMORY_OPT_CONFIG", config)
        torch.manual_seed(0)
        model = ORTModule(_Heads())
        model(torch.randn(2, 64, 32)).square().mean().backward()
        found.append([p.grad for p in model.parameters() if p.grad is not None])
        (piece,) = model._compiler.pieces
        plan = piece.compiled.text("plan")
        assert plan.count("attention_cpu") == (2 if config else 1), plan
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


class _FewQueries(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 4, 2).permute(2, 0, 3, 1, 4)
        return nn.functional.scaled_dot_product_attention(q, k, v)


def test_few_queries_whose_statistics_are_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """They read keys as they lie, which gives other bits than packed keys."""
    found = []
    for config in ("", "ScaledDotProductAttention+:1:-1"):
        monkeypatch.setenv("ORTMODULE_MEMORY_OPT_CONFIG", config)
        torch.manual_seed(0)
        model, x = ORTModule(_FewQueries()), torch.randn(64, 2, 8)
        y = model(x)
        y.square().sum().backward()
        found.append([y, *(p.grad for p in model.parameters())])
        plan = model._compiler.pieces[0].compiled.text("plan")
        assert ("ScaledDotProductAttention_2_recompute" in plan) == bool(config), plan
    assert all(torch.equal(kept, again) for kept, again in zip(*found, strict=True))
